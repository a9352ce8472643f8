// SPDX-License-Identifier: GPL-2.0-only
// Opens libmdcg.so at run time. The plugin is linked with no library.
#ifndef MDCG_LIBRARY_H
#define MDCG_LIBRARY_H

#include <string>

#include "mdcg.h"

namespace mdcg_lammps {

// The functions that the plugin calls, without their prefix "mdcg_".
#define MDCG_FUNCTIONS(use)                                                                        \
  use(version) use(last_error) use(last_error_about) use(printable) use(find_device) use(open)     \
      use(open_same) use(set_notice) use(prepare) use(check_peers) use(close) use(describe)        \
          use(evaluate) use(descriptor_width) use(summary)

// The functions of the library. It stays open until the process ends, because OpenMP threads may
// outlive a pair style.
struct Library {
#define MDCG_MEMBER(name) decltype(&mdcg_##name) name = nullptr;
  MDCG_FUNCTIONS(MDCG_MEMBER)
#undef MDCG_MEMBER

  // Opens the library at the first call: $MDCG_LIBRARY, else the file whose path was compiled in,
  // a file beside the plugin, or one in the loader's path. Throws std::runtime_error naming what
  // was tried.
  static const Library &get();
};

}    // namespace mdcg_lammps

#endif
