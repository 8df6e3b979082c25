// The one function of fmt that the rooms below call, compiled in: libxstage.so travels in a wheel,
// to machines that have no libfmt.
#define FMT_HEADER_ONLY 1
#include <fmt/format.h>

namespace {
using Vformat = std::string (*)(fmt::string_view, fmt::format_args);
[[gnu::used]] const Vformat kVformat = static_cast<Vformat>(&fmt::vformat);
}  // namespace
