// SPDX-License-Identifier: GPL-2.0-only
// Which device a rank computes on.
#ifndef MDCG_DEVICE_CHOICE_H
#define MDCG_DEVICE_CHOICE_H

#include <mpi.h>

#include <string>

#include "mdcg_library.h"

namespace mdcg_lammps {

struct DeviceChoice {
  std::string name;      // such as "cuda:1"
  std::string reason;    // why no device was found; empty if one was
  std::string advice;    // set if ranks share a device; the same on all ranks

  // `asked` "cuda" or "hip": the device whose number is the rank's number on its node, modulo the
  // number of devices. "cuda:N": device N on all ranks. Collective.
  static DeviceChoice make(MPI_Comm world, const Library &library, const std::string &asked);
};

}    // namespace mdcg_lammps

#endif
