// One self-contained HTML page from documents.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/documents.hpp"
#include "report/figure.hpp"

namespace xstage::report {

/// A figure of the summary box.
struct Tile {
  std::string value;  ///< HTML
  std::string label;
  std::string from;  ///< the file it comes from
};

struct Section {
  std::string id;
  std::string title;
  std::string body;  ///< HTML
};

/// The page while it is being made: sections in reading order, figures with their places.
class Page {
 public:
  /// Adds a figure and returns the HTML of its place; empty when it has nothing to show.
  std::string place(Figure figure);
  /// Appends to the section `id`, which is made when it is not there yet.
  void add(std::string_view id, std::string_view title, std::string body);
  bool has(std::string_view id) const;
  void add_tile(Tile tile) { tiles_.push_back(std::move(tile)); }

  const std::vector<Section>& sections() const { return sections_; }
  const std::vector<Figure>& figures() const { return figures_; }
  const std::vector<Tile>& tiles() const { return tiles_; }

 private:
  std::vector<Section> sections_;
  std::vector<Figure> figures_;
  std::vector<Tile> tiles_;
};

// Each shows one document; what it lacks is left out.
void add_validation(const Document& document, Page& page);
void add_profile(const Document& document, Page& page);
void add_fit(const Document& document, Page& page);
void add_plan(const Document& document, Page& page);
void add_simulation(const Document& document, Page& page);
void add_prediction(const Document& document, Page& page);
void add_run(const Document& document, Page& page);
void add_bench(const Document& document, Page& page);
void add_calibration(const Document& document, Page& page);
void add_doctor(const Document& document, Page& page);

/// "lingbot-video, 8192 tokens a rank, 2 ranks, w8a8, balanced" for a layer of any kind, as HTML.
std::string layer_line(const json& layer);
/// The box of a run that ended with an error; empty when it did not.
std::string error_box(const Document& document);

struct PageCounts {
  std::size_t figures = 0;
  std::size_t points = 0;
};

/// The whole page. `title` is the name of the directory; `counts`, when given, says what was drawn.
std::string render(const Collection& collection, std::string_view title,
                   PageCounts* counts = nullptr);

}  // namespace xstage::report
