#include "xstage/version.hpp"

namespace xstage {

std::string_view version() { return XSTAGE_VERSION; }

}  // namespace xstage
