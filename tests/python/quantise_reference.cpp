// The format's rule as the CPU ranks have it, for the test of quantise_weights(): reads fp32 values
// of one group from stdin, writes the fp32 scale and the e4m3 codes.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "cpu/numbers.hpp"

int main() {
  std::vector<float> values;
  for (float value; std::fread(&value, sizeof value, 1, stdin) == 1;) values.push_back(value);
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  const float scale = xstage::cpu::scale_of_group(largest);
  std::fwrite(&scale, sizeof scale, 1, stdout);
  for (const float value : values) std::fputc(xstage::cpu::float_to_e4m3(value / scale), stdout);
}
