#include "model/least_squares.hpp"

#include <Eigen/Core>
#include <cmath>
#include <unsupported/Eigen/NonLinearOptimization>
#include <unsupported/Eigen/NumericalDiff>

namespace xstage::model {
namespace {

struct Problem {
  using Scalar = double;
  using InputType = Eigen::VectorXd;
  using ValueType = Eigen::VectorXd;
  using JacobianType = Eigen::MatrixXd;
  enum { InputsAtCompileTime = Eigen::Dynamic, ValuesAtCompileTime = Eigen::Dynamic };

  int inputs_count;
  int values_count;
  const std::function<void(const std::vector<double>&, std::vector<double>&)>* residuals;

  int inputs() const { return inputs_count; }
  int values() const { return values_count; }

  int operator()(const Eigen::VectorXd& x, Eigen::VectorXd& out) const {
    const std::vector<double> parameters(x.data(), x.data() + x.size());
    std::vector<double> values(static_cast<std::size_t>(values_count));
    (*residuals)(parameters, values);
    for (int i = 0; i < values_count; ++i) {
      // Soft L1: quadratic for small residuals, linear for outliers. The sign keeps it smooth.
      const double r = values[static_cast<std::size_t>(i)];
      out[i] = std::copysign(std::sqrt(2 * (std::sqrt(1 + r * r) - 1)), r);
    }
    return 0;
  }
};

}  // namespace

std::vector<double> least_squares(
    const std::vector<double>& start, std::size_t residual_count,
    const std::function<void(const std::vector<double>&, std::vector<double>&)>& residuals) {
  const Problem problem{static_cast<int>(start.size()), static_cast<int>(residual_count),
                        &residuals};
  // The model has corners: a step of a thousandth sees across them.
  Eigen::NumericalDiff<Problem> derivative(problem, 1e-6);
  Eigen::LevenbergMarquardt<Eigen::NumericalDiff<Problem>> solver(derivative);
  solver.parameters.maxfev = 400;
  solver.parameters.xtol = 1e-6;
  solver.parameters.ftol = 1e-8;
  Eigen::VectorXd x = Eigen::Map<const Eigen::VectorXd>(start.data(), problem.inputs_count);
  solver.minimize(x);
  return {x.data(), x.data() + x.size()};
}

}  // namespace xstage::model
