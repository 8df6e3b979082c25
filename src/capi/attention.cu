#include "capi/common.hpp"
#include "cuda/ulysses/attention.hpp"
#include "xstage/version.hpp"

using namespace xstage;

extern "C" int xstage_abi(void) { return XSTAGE_ABI; }

extern "C" const char* xstage_version(void) { return version().data(); }

extern "C" int xstage_attention(std::int32_t type, const xstage_tensor* query,
                                const xstage_tensor* key, const xstage_tensor* value,
                                const xstage_tensor* output, const std::int32_t* key_lengths,
                                float* lse, float scale, std::int32_t device, void* stream,
                                char* message, std::size_t size) {
  const capi::Message refuse{message, size};
  const auto scalar = capi::scalar_type(type);
  if (!scalar.ok()) return refuse(scalar.error());
  const capi::DeviceGuard guard(device);
  if (const auto ready = guard.ready(); !ready.ok()) return refuse(ready.error());
  ulysses::AttentionInputs in;
  in.query = capi::view_of(*query, *scalar);
  in.key = capi::view_of(*key, *scalar);
  in.value = capi::view_of(*value, *scalar);
  in.key_lengths = key_lengths;
  in.lse = lse;
  in.scale = scale;
  const auto attention = ulysses::Attention::local(in, capi::view_of(*output, *scalar));
  if (!attention.ok()) return refuse(attention.error());
  return refuse(attention.value().launch(stream));
}
