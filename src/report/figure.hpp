// What a plot shows, without how it is drawn: the page's script turns it into a drawing in the
// reader's colours.
#pragma once

#include <string>
#include <vector>

#include "report/html.hpp"

namespace xstage::report {

/// One line, cloud of points or row of spans. Points that are not finite are left out.
struct Trace {
  enum class Shape {
    kPoints,  ///< measured: markers, whiskers from low to high where given
    kLine,    ///< the model
    kLimit,   ///< a bound, dashed
    kSpans    ///< x … x + width on row y
  };
  Shape shape = Shape::kPoints;
  std::string name;      ///< in the legend; empty keeps it out
  int colour = 0;        ///< place on the colour scale …
  int colours = 1;       ///< … of so many
  bool neutral = false;  ///< drawn in grey instead
  std::vector<double> x;
  std::vector<double> y;
  std::vector<double> low;    ///< of y; may be empty
  std::vector<double> high;   ///< of y; may be empty
  std::vector<double> width;  ///< spans only
};

/// One view of a figure; the reader picks group and key.
struct Panel {
  std::string group;
  std::string key;
  std::vector<Trace> traces;
};

struct Figure {
  std::string title;
  std::string caption;  ///< what to look for
  std::string source;   ///< the file that the points come from
  std::string x_title;  ///< with its unit
  std::string y_title;  ///< with its unit
  bool log_x = false;
  bool log_y = false;
  bool from_zero = false;         ///< y starts at 0
  double x_until = 0;             ///< x runs from 0 to here; 0: as the data runs
  std::string link;               ///< figures with one link show the same panel
  std::vector<std::string> rows;  ///< names of the rows of spans
  std::vector<Panel> panels;
  std::size_t shown = 0;  ///< the panel shown first

  /// Points, line ends and spans over all panels.
  std::size_t size() const;
  /// Shows first the panel with most points.
  void show_fullest();
};

/// The figure as the page's script reads it.
json to_json(const Figure& figure);

}  // namespace xstage::report
