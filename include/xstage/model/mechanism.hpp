// How a producer stores into a peer's memory.
#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace xstage::model {

enum class Mechanism {
  kStoreV1,  ///< 4-byte `st.global` by every thread of the block
  kStoreV2,  ///< 8-byte `st.global`
  kStoreV4,  ///< 16-byte `st.global`
  kTmaBulk   ///< `cp.async.bulk` from shared memory, issued by one thread
};

inline constexpr std::array kMechanisms{Mechanism::kStoreV1, Mechanism::kStoreV2,
                                        Mechanism::kStoreV4, Mechanism::kTmaBulk};

/// The name used in files and on the command line.
constexpr std::string_view name(Mechanism mechanism) {
  switch (mechanism) {
    case Mechanism::kStoreV1: return "st_v1";
    case Mechanism::kStoreV2: return "st_v2";
    case Mechanism::kStoreV4: return "st_v4";
    case Mechanism::kTmaBulk: return "tma_bulk";
  }
  return "?";
}

constexpr std::optional<Mechanism> mechanism_named(std::string_view text) {
  for (Mechanism mechanism : kMechanisms)
    if (name(mechanism) == text) return mechanism;
  return std::nullopt;
}

/// Bytes of one store instruction of one thread; 0 for bulk stores, which have no passes.
constexpr int store_bytes(Mechanism mechanism) {
  switch (mechanism) {
    case Mechanism::kStoreV1: return 4;
    case Mechanism::kStoreV2: return 8;
    case Mechanism::kStoreV4: return 16;
    case Mechanism::kTmaBulk: return 0;
  }
  return 0;
}

}  // namespace xstage::model
