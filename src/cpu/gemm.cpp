#include "cpu/gemm.hpp"

#include <Eigen/Core>

namespace xstage::cpu {
namespace {
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Input = Eigen::Map<const Matrix>;
using Output = Eigen::Map<Matrix>;
}  // namespace

void multiply_transposed(const float* a, const float* b, float* c, std::int64_t m, std::int64_t n,
                         std::int64_t k) {
  Output(c, m, n).noalias() = Input(a, m, k) * Input(b, n, k).transpose();
}

void multiply_add(const float* a, const float* b, float* c, std::int64_t m, std::int64_t n,
                  std::int64_t k) {
  Output(c, m, n).noalias() += Input(a, m, k) * Input(b, k, n);
}

}  // namespace xstage::cpu
