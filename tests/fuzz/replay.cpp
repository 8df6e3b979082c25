// Runs a fuzz target over the files of its corpus, and over every prefix of them.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  int files = 0;
  for (int i = 1; i < argc; ++i)
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream in(entry.path(), std::ios::binary);
      const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
      const auto* const data = reinterpret_cast<const std::uint8_t*>(bytes.data());
      const std::size_t step = bytes.size() / 500 + 1;
      for (std::size_t size = 0; size < bytes.size(); size += step)
        LLVMFuzzerTestOneInput(data, size);
      LLVMFuzzerTestOneInput(data, bytes.size());
      ++files;
    }
  std::printf("%d files\n", files);
  return files > 0 ? 0 : 1;
}
