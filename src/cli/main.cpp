#include "cli/verbs.hpp"

int main(int argc, char** argv) { return xstage::cli::run(argc, argv); }
