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
  std::string reason;    // why there is no device; empty if there is one
  std::string advice;    // if ranks share a device; the same on all ranks
  std::string peers;     // advice if each rank has a device and `exchange peer` may be faster

  // Collective. "cuda": the device with the rank's number on its node, modulo if there are more
  // ranks than devices; "cuda:N": that one on all ranks.
  static DeviceChoice make(MPI_Comm world, const Library &library, const std::string &asked);
};

}    // namespace mdcg_lammps

#endif
