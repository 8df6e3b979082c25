// Texts embedded in the executable, so that a report needs no file beside it.
#pragma once

#include <string_view>

namespace xstage::report {

std::string_view style_sheet();
std::string_view page_script();
/// Empty when the build could not get it; reports then have no plots.
std::string_view plot_script();

}  // namespace xstage::report
