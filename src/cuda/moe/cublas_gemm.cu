#include "cuda/moe/cublas_gemm.hpp"

#include <dlfcn.h>

#include <string>

#include "cuda/probe/check.cuh"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define XSTAGE_CUBLAS 1
#endif

namespace xstage::moe {

#ifdef XSTAGE_CUBLAS
namespace {

struct Functions {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmul) matmul;
};

bool load(void* library, Functions& f) {
  const auto get = [&](auto& to, const char* name) {
    to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(dlsym(library, name));
    return to != nullptr;
  };
  return get(f.create, "cublasLtCreate") && get(f.destroy, "cublasLtDestroy") &&
         get(f.desc_create, "cublasLtMatmulDescCreate") &&
         get(f.desc_destroy, "cublasLtMatmulDescDestroy") &&
         get(f.desc_set, "cublasLtMatmulDescSetAttribute") &&
         get(f.layout_create, "cublasLtMatrixLayoutCreate") &&
         get(f.layout_destroy, "cublasLtMatrixLayoutDestroy") &&
         get(f.preference_create, "cublasLtMatmulPreferenceCreate") &&
         get(f.preference_destroy, "cublasLtMatmulPreferenceDestroy") &&
         get(f.preference_set, "cublasLtMatmulPreferenceSetAttribute") &&
         get(f.heuristic, "cublasLtMatmulAlgoGetHeuristic") && get(f.matmul, "cublasLtMatmul");
}

Result<bool> good(cublasStatus_t code, const char* call) {
  if (code == CUBLAS_STATUS_SUCCESS) return true;
  return Error{ErrorKind::kUnsupported,
               std::string(call) + ": cuBLAS status " + std::to_string(static_cast<int>(code)),
               {},
               {},
               {}};
}
#define XSTAGE_CUBLAS_TRY(call) \
  if (auto xstage_done = good(call, #call); !xstage_done) return xstage_done.error()

class Prepared : public CublasGemm {
 public:
  Prepared(const Functions& f, const DenseGemm& gemm) : f_(f), gemm_(gemm) {}
  ~Prepared() override {
    for (cublasLtMatrixLayout_t layout : {a_, b_, out_})
      if (layout != nullptr) f_.layout_destroy(layout);
    if (desc_ != nullptr) f_.desc_destroy(desc_);
    if (handle_ != nullptr) f_.destroy(handle_);
  }

  /// In cuBLAS' terms (columns first): outᵀ [n][m] = bᵀ transposed · aᵀ.
  Result<bool> prepare() {
    const auto m = static_cast<std::uint64_t>(gemm_.m), n = static_cast<std::uint64_t>(gemm_.n),
               k = static_cast<std::uint64_t>(gemm_.k);
    XSTAGE_CUBLAS_TRY(f_.create(&handle_));
    XSTAGE_CUBLAS_TRY(f_.desc_create(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T, plain = CUBLAS_OP_N;
    XSTAGE_CUBLAS_TRY(
        f_.desc_set(desc_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    XSTAGE_CUBLAS_TRY(f_.desc_set(desc_, CUBLASLT_MATMUL_DESC_TRANSB, &plain, sizeof plain));
    const std::int8_t fast = gemm_.fast ? 1 : 0;
    XSTAGE_CUBLAS_TRY(f_.desc_set(desc_, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast));
    const cudaDataType_t values = gemm_.bf16 ? CUDA_R_16BF : CUDA_R_8F_E4M3;
    XSTAGE_CUBLAS_TRY(f_.layout_create(&b_, values, k, n, static_cast<std::int64_t>(gemm_.k)));
    XSTAGE_CUBLAS_TRY(f_.layout_create(&a_, values, k, m, static_cast<std::int64_t>(gemm_.k)));
    XSTAGE_CUBLAS_TRY(f_.layout_create(&out_, gemm_.out_fp32 ? CUDA_R_32F : CUDA_R_16BF, n, m,
                                       static_cast<std::int64_t>(gemm_.n)));
    cublasLtMatmulPreference_t preference = nullptr;
    XSTAGE_CUBLAS_TRY(f_.preference_create(&preference));
    const auto bytes = static_cast<std::size_t>(gemm_.workspace_bytes);
    int found = 0;
    const auto done = [&]() -> Result<bool> {
      XSTAGE_CUBLAS_TRY(f_.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                          &bytes, sizeof bytes));
      return good(f_.heuristic(handle_, desc_, b_, a_, out_, out_, preference, 1, &choice_, &found),
                  "choice of an algorithm");
    }();
    f_.preference_destroy(preference);
    if (!done) return done.error();
    if (found == 0)
      return Error{
          ErrorKind::kUnsupported, "cuBLAS has no GEMM of this format and size", {}, {}, {}};
    return true;
  }

  Result<bool> launch(cudaStream_t stream) override {
    const float one = 1, zero = 0;
    return good(f_.matmul(handle_, desc_, &one, gemm_.b, b_, gemm_.a, a_, &zero, gemm_.out, out_,
                          gemm_.out, out_, &choice_.algo, gemm_.workspace,
                          static_cast<std::size_t>(gemm_.workspace_bytes), stream),
                "cublasLtMatmul");
  }

 private:
  const Functions& f_;
  DenseGemm gemm_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, out_ = nullptr;
  cublasLtMatmulHeuristicResult_t choice_{};
};

class Loaded : public Cublas {
 public:
  explicit Loaded(const Functions& f) : f_(f) {}
  Result<std::unique_ptr<CublasGemm>> prepare(const DenseGemm& gemm) override {
    auto out = std::make_unique<Prepared>(f_, gemm);
    if (auto done = out->prepare(); !done) return done.error();
    return Result<std::unique_ptr<CublasGemm>>(std::move(out));
  }

 private:
  Functions f_;
};

}  // namespace

std::unique_ptr<Cublas> open_cublas() {
  const std::string major = std::to_string(CUBLAS_VER_MAJOR);
  void* const library = dlopen(("libcublasLt.so." + major).c_str(), RTLD_NOW | RTLD_LOCAL);
  Functions f{};
  if (library == nullptr || !load(library, f)) return nullptr;
  return std::make_unique<Loaded>(f);  // the library stays loaded
}
#else
std::unique_ptr<Cublas> open_cublas() { return nullptr; }
#endif

}  // namespace xstage::moe
