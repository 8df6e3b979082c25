#!/usr/bin/env bash
# The simulator on 100 000 random schedules, and on every measured burst
# limit: 600 s
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
XSTAGE_LONG_TESTS=1 build/tests/sim/sim_test --gtest_brief=1
