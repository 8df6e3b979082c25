// What a test must know of the build it runs in.
#pragma once

namespace xstage::test {

#if defined(__has_feature)
#define XSTAGE_HAS_FEATURE(x) __has_feature(x)
#else
#define XSTAGE_HAS_FEATURE(x) 0
#endif

#if defined(__SANITIZE_THREAD__) || XSTAGE_HAS_FEATURE(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

#if defined(__SANITIZE_ADDRESS__) || XSTAGE_HAS_FEATURE(address_sanitizer)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

/// Times that a test allows are multiplied by this. ThreadSanitizer makes ranks about ten times
/// slower, AddressSanitizer two to three times, and these builds run where other work does.
inline constexpr int kSlowness = kThreadSanitizer ? 10 : kAddressSanitizer ? 4 : 1;

}  // namespace xstage::test
