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

#ifdef __cplusplus
}
#endif
#endif
