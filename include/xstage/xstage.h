/* xstage from C and every language that can call C: libxstage.so, which the Python package carries.
 *
 * Functions return 0, or a code of enum xstage_code with one line in `message` (`size` bytes,
 * always terminated): what was wrong, the field, its value and what is allowed. Nothing else is
 * thrown or printed. Device memory is the caller's throughout. Calls that launch are asynchronous
 * on `stream` (a cudaStream_t), may be captured into a graph, and never wait for the device; those
 * that do say so. The CUDA runtime is inside the library and shares the device's primary context.
 */
#ifndef XSTAGE_XSTAGE_H
#define XSTAGE_XSTAGE_H

#include <stddef.h>
#include <stdint.h>

/* C has no namespaces: NOLINTBEGIN(readability-identifier-naming) */
#ifdef __cplusplus
extern "C" {
#endif

enum xstage_code {
  XSTAGE_OK = 0,
  XSTAGE_CHECK_FAILED = 1, /* a wrong result */
  XSTAGE_BAD_INPUT = 2,
  XSTAGE_NO_GPU = 3,
  XSTAGE_UNSUPPORTED = 4, /* this GPU, driver or pair of GPUs cannot */
  XSTAGE_TIMEOUT = 5      /* a rank waited longer than its limit */
};

/* Raised by one with every change that an older caller would not survive. */
#define XSTAGE_ABI 1
int xstage_abi(void);

/* "major.minor.patch" */
const char* xstage_version(void);

enum xstage_type { XSTAGE_BF16 = 0, XSTAGE_FP16 = 1 };

/* [batch, rows, heads, head_dim], in this order whatever the strides (in elements) say. The last
 * dimension is dense, other strides are multiples of 8 elements, the address is one of 16 bytes. */
typedef struct xstage_tensor {
  void* data;
  int64_t shape[4];
  int64_t stride[4];
} xstage_tensor;

/* ---- Attention on one GPU (compute capability 9.0), not causal ---- */

/* head_dim 64 or 128. `key` and `value` may have fewer heads, a divisor of the query's. `output`
 * has the query's shape. `key_lengths` [batch] int32 in device memory: keys from there on have no
 * weight; null: all keys. `lse` [batch][heads][rows] fp32 in device memory: natural logarithm of
 * each row's sum; or null. `scale` of the logits; 0: 1/sqrt(head_dim). */
int xstage_attention(int32_t type, const xstage_tensor* query, const xstage_tensor* key,
                     const xstage_tensor* value, const xstage_tensor* output,
                     const int32_t* key_lengths, float* lse, float scale, int32_t device,
                     void* stream, char* message, size_t size);

/* ---- Ulysses attention: one process a rank, 1 to 8 ranks of a node ---- */

/* The same on every rank but for `rank`. */
typedef struct xstage_ulysses_config {
  int32_t ranks, rank;
  /* Heads of all ranks. kv_heads divides heads; where it is below ranks, key heads that several
   * ranks read are sent to each of them. */
  int64_t batch, heads, kv_heads, head_dim;
  int64_t rows;                             /* of the whole sequence; keys have as many */
  /* [segments][4]: first row, end, rank (-1: every rank has these rows), row there. Null: shards
   * that follow each other and differ by one row at most. */
  const int64_t* table;
  int32_t segments;
  int32_t type;  /* enum xstage_type, of every tensor */
  float scale;   /* of the logits; 0: 1/sqrt(head_dim) */
} xstage_ulysses_config;

typedef struct xstage_ulysses xstage_ulysses; /* one rank of one layer */

/* Bytes of device memory that a rank needs: `symmetric`, as large on every rank and written by
 * peers, and `workspace`, its own. Asks no device. */
int xstage_ulysses_bytes(const xstage_ulysses_config* config, int64_t* symmetric,
                         int64_t* workspace, char* message, size_t size);

/* `symmetric` [ranks]: every rank's buffer as `device` addresses it. Buffers and workspace are zero
 * on all ranks before any of them launches. `key_lengths` as above, read at every launch.
 * `wait_limit_ns` ends a wait for another rank. */
int xstage_ulysses_open(const xstage_ulysses_config* config, int32_t device,
                        void* const* symmetric, void* workspace, const int32_t* key_lengths,
                        uint64_t wait_limit_ns, xstage_ulysses** layer, char* message, size_t size);

/* This rank's own rows of all heads to its own rows of the output, [batch, own rows, heads,
 * head_dim], contiguous: Q, K and V to the ranks of their heads, attention with its output to the
 * owners of the rows, and a copy out of the symmetric buffer (`output` null: none). All ranks call
 * it equally often, in the same order. XSTAGE_TIMEOUT: some wait of an earlier call passed its
 * limit; the message says who waited for whom, and so will every call until recover(). */
int xstage_ulysses_forward(xstage_ulysses* layer, const xstage_tensor* query,
                           const xstage_tensor* key, const xstage_tensor* value, void* output,
                           void* stream, char* message, size_t size);

/* How the launches so far ended. Reads host memory alone: synchronise the stream before. */
int xstage_ulysses_check(const xstage_ulysses* layer, char* message, size_t size);

/* After a timeout: signals as before the first launch. Waits for the device. On every rank, with
 * the caller's barrier before and behind it. */
int xstage_ulysses_recover(xstage_ulysses* layer, char* message, size_t size);

/* The stream must have ended. */
void xstage_ulysses_close(xstage_ulysses* layer);

/* ---- Fused expert-parallel MoE layer: one process a rank, 1 to 8 ranks of a node ---- */

enum xstage_moe_format { XSTAGE_MOE_W8A8 = 0, XSTAGE_MOE_BF16 = 1 };
enum xstage_moe_order { XSTAGE_MOE_WAVE = 0, XSTAGE_MOE_INTERLEAVED = 1 };

/* The same on every rank but for `rank`. Rank e / (experts / ranks) has expert e. */
typedef struct xstage_moe_config {
  int32_t ranks, rank, topk;
  int32_t format;                         /* enum xstage_moe_format */
  int64_t experts, hidden, intermediate;  /* hidden a multiple of 256, intermediate of 128 */
  int64_t capacity;                       /* the most tokens that a rank brings to a call */
  int64_t tokens;                         /* that it brings as a rule: 1 to capacity */
  int32_t workers;                        /* thread blocks: the SMs of the GPUs */
  int32_t order;                          /* enum xstage_moe_order */
  int64_t group_or_lead; /* experts in a group of the wave, or rows of 128 tokens by which Linear-1
                            runs ahead; 0: what suits `tokens`, filled in by xstage_moe_bytes() */
  float clamp;           /* of SwiGLU: gate from above, up on both sides; 0: none */
} xstage_moe_config;

/* One rank's experts, in its GPU's memory, the caller's, 16-byte aligned. w8a8: e4m3 with fp32
 * scales, value = code * scale of its block of 128 x 128. bf16: without scales. */
typedef struct xstage_moe_weights {
  const void* w1;         /* [local experts][2 * intermediate][hidden], gate rows before up rows */
  const float* w1_scales; /* [local experts][2 * intermediate / 128][hidden / 128] */
  const void* w2;         /* [local experts][hidden][intermediate] */
  const float* w2_scales; /* [local experts][hidden / 128][intermediate / 128] */
} xstage_moe_weights;

typedef struct xstage_moe xstage_moe; /* one rank of one layer */

/* The order that is predicted to be the fastest for `config->tokens` a rank, of balanced routing, on
 * two H200 (w8a8 alone); sets `order` and `group_or_lead`, and says why in `reason` (`reason_size`
 * bytes). Asks no device; takes milliseconds to seconds of the host. */
int xstage_moe_choose(xstage_moe_config* config, char* reason, size_t reason_size, char* message,
                      size_t size);

/* As xstage_ulysses_bytes(). */
int xstage_moe_bytes(xstage_moe_config* config, int64_t* symmetric, int64_t* workspace,
                     char* message, size_t size);

/* As xstage_ulysses_open(); buffers begin at multiples of 256 bytes and need no particular content.
 * Every rank has been opened before any of them launches. */
int xstage_moe_open(const xstage_moe_config* config, int32_t device, void* const* symmetric,
                    void* workspace, const xstage_moe_weights* weights, uint64_t first_limit_ns,
                    uint64_t wait_limit_ns, xstage_moe** layer, char* message, size_t size);

/* out[t] = addend[t] + sum over slots j of weights[t][j] * W2 swiglu(W1 x[t]) of expert
 * experts[t][j], for `tokens` own tokens, 0 to capacity. x, addend (or null) and out are bf16
 * [tokens][hidden], experts int32 [tokens][topk] with -1 for none, weights fp32 [tokens][topk]; all
 * dense. All ranks call it equally often. Errors as xstage_ulysses_forward(); an expert id out of
 * range ends the launch of all ranks and is told by the next call. */
int xstage_moe_forward(xstage_moe* layer, int64_t tokens, const void* x, const int32_t* experts,
                       const float* weights, const void* addend, void* out, void* stream,
                       char* message, size_t size);

/* How the calls so far ended. Waits for `stream`. */
int xstage_moe_check(xstage_moe* layer, void* stream, char* message, size_t size);

/* As those of xstage_ulysses. */
int xstage_moe_recover(xstage_moe* layer, char* message, size_t size);
void xstage_moe_close(xstage_moe* layer);

#ifdef __cplusplus
}
#endif
/* NOLINTEND(readability-identifier-naming) */
#endif
