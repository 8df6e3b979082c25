#pragma once

#include <string_view>

namespace xstage {

/// Version of the library, as in the build files: "major.minor.patch".
std::string_view version();

}  // namespace xstage
