#include "report/assets.hpp"

// The assembler copies the files; a string literal of 5 MB would cost seconds and a gigabyte to
// compile.
// clang-format off
#define XSTAGE_EMBED(name, path)                  \
  asm(".section .rodata\n"                        \
      ".balign 16\n"                              \
      "xstage_embedded_" #name ":\n"              \
      ".incbin \"" path "\"\n"                    \
      "xstage_embedded_" #name "_end:\n"          \
      ".previous\n");                             \
  extern "C" const char xstage_embedded_##name[]; \
  extern "C" const char xstage_embedded_##name##_end[];
// clang-format on

XSTAGE_EMBED(style_sheet, XSTAGE_REPORT_CSS)
XSTAGE_EMBED(page_script, XSTAGE_REPORT_JS)
#ifdef XSTAGE_PLOT_JS
XSTAGE_EMBED(plot_script, XSTAGE_PLOT_JS)
#endif

namespace xstage::report {

std::string_view style_sheet() {
  return {xstage_embedded_style_sheet, xstage_embedded_style_sheet_end};
}

std::string_view page_script() {
  return {xstage_embedded_page_script, xstage_embedded_page_script_end};
}

std::string_view plot_script() {
#ifdef XSTAGE_PLOT_JS
  return {xstage_embedded_plot_script, xstage_embedded_plot_script_end};
#else
  return {};
#endif
}

}  // namespace xstage::report
