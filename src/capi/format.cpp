// What the rooms below call of fmt, compiled in: libxstage.so travels in a wheel, to machines that
// have no libfmt. A test of the wheel fails where something is missing here.
#define FMT_HEADER_ONLY 1
#include <fmt/format.h>

namespace {
namespace detail = fmt::detail;

[[gnu::used]] const auto kVformat =
    static_cast<std::string (*)(fmt::string_view, fmt::format_args)>(&fmt::vformat);
[[gnu::used]] const auto kPoint =
    static_cast<char (*)(detail::locale_ref)>(&detail::decimal_point_impl<char>);
[[gnu::used]] const auto kSeparator =
    static_cast<detail::thousands_sep_result<char> (*)(detail::locale_ref)>(
        &detail::thousands_sep_impl<char>);
[[gnu::used]] const auto kDouble = static_cast<detail::dragonbox::decimal_fp<double> (*)(double)>(
    &detail::dragonbox::to_decimal<double>);
[[gnu::used]] const auto kFloat = static_cast<detail::dragonbox::decimal_fp<float> (*)(float)>(
    &detail::dragonbox::to_decimal<float>);
[[gnu::used]] const auto kPrintable = static_cast<bool (*)(std::uint32_t)>(&detail::is_printable);
[[gnu::used]] const auto kThrow = static_cast<void (*)(const char*)>(&detail::throw_format_error);
}  // namespace
