// SPDX-License-Identifier: GPL-2.0-only
// libmdcg.so, opened at run time: the plugin links neither it nor anything else.
#ifndef MDCG_LIBRARY_H
#define MDCG_LIBRARY_H

#include <string>

#include "mdcg.h"

namespace mdcg_lammps {

// The functions of the library. It stays open until the process ends, because OpenMP threads may
// outlive a pair style.
struct Library {
  decltype(&mdcg_version) version = nullptr;
  decltype(&mdcg_last_error) last_error = nullptr;
  decltype(&mdcg_last_error_about) last_error_about = nullptr;
  decltype(&mdcg_printable) printable = nullptr;
  decltype(&mdcg_find_device) find_device = nullptr;
  decltype(&mdcg_open) open = nullptr;
  decltype(&mdcg_open_same) open_same = nullptr;
  decltype(&mdcg_set_notice) set_notice = nullptr;
  decltype(&mdcg_prepare) prepare = nullptr;
  decltype(&mdcg_close) close = nullptr;
  decltype(&mdcg_describe) describe = nullptr;
  decltype(&mdcg_evaluate) evaluate = nullptr;
  decltype(&mdcg_summary) summary = nullptr;
  std::string path;

  // Opens the library at the first call: $MDCG_LIBRARY, else the file whose path was compiled in,
  // a file beside the plugin, or one in the loader's path. Throws std::runtime_error naming what
  // was tried.
  static const Library &get();
};

}    // namespace mdcg_lammps

#endif
