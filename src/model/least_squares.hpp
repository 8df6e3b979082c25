// Robust least squares over a few parameters, by Eigen's Levenberg-Marquardt.
#pragma once

#include <functional>
#include <vector>

namespace xstage::model {

/// Minimises the sum of soft-L1 losses of `residuals(x)` (already divided by their scale), starting
/// at `start`. Parameters should be of order 1 to 100. Returns the best x.
std::vector<double> least_squares(
    const std::vector<double>& start, std::size_t residual_count,
    const std::function<void(const std::vector<double>&, std::vector<double>&)>& residuals);

}  // namespace xstage::model
