// Work that is done on all cores while something else goes on.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "cli/in_parallel.hpp"
#include "xstage/result.hpp"

namespace xstage::cli {

/// Makes the `wanted` of `count` things, in their order, on threads of its own. Destroyed before
/// all are made, it makes no more of them and waits for those that were begun.
template <class T>
class Preparation {
 public:
  using Make = std::function<Result<T>(std::size_t)>;
  Preparation(std::vector<std::size_t> wanted, std::size_t count, Make make) : rows_(count) {
    for (std::size_t i = 0; i < rows_.size(); ++i) futures_.push_back(rows_[i].get_future());
    worker_ = std::jthread([this, wanted = std::move(wanted), make = std::move(make)] {
      in_parallel(wanted.size(), [&](std::size_t i) {
        const std::size_t row = wanted[i];
        try {
          rows_[row].set_value(stop_ ? Error{ErrorKind::kInterrupted, "stopped", {}, {}, {}}
                                     : make(row));
        } catch (...) {
          rows_[row].set_exception(std::current_exception());
        }
      });
    });
  }
  ~Preparation() { stop_ = true; }
  Preparation(const Preparation&) = delete;
  Preparation& operator=(const Preparation&) = delete;

  /// Waits for one of the wanted; throws what making it threw. Once for each.
  Result<T> take(std::size_t row) { return futures_[row].get(); }

 private:
  std::vector<std::promise<Result<T>>> rows_;
  std::vector<std::future<Result<T>>> futures_;
  std::atomic<bool> stop_{false};
  std::jthread worker_;  // last: it ends before what it uses
};

}  // namespace xstage::cli
