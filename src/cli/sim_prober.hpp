// The probe's runs on the simulator instead of GPUs: `calibrate --backend sim` goes through the
// same plan, samples and fit as a node does.
#pragma once

#include <memory>

#include "cuda/probe/prober.hpp"
#include "xstage/model/profile.hpp"

namespace xstage::cli {

/// A simulated node of `gpus` GPUs (0: as many as the profile's node has) behind a switch, each
/// with the parameters of `profile`. It knows window and isolated runs of the mechanisms and thread
/// counts of the profile; everything else is answered with kUnsupported.
std::unique_ptr<probe::Prober> open_sim_prober(model::Profile profile, int gpus = 0);

/// The profile that ships with xstage, two H200: the default of `calibrate --backend sim`.
const char* embedded_profile();

}  // namespace xstage::cli
