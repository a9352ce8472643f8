// SPDX-License-Identifier: GPL-2.0-only
// compute mdcg/heat/flux: the heat flux of a potential with several layers of messages.
#ifndef LMP_COMPUTE_MDCG_HEAT_FLUX_H
#define LMP_COMPUTE_MDCG_HEAT_FLUX_H

#include <cstdint>
#include <string>
#include <vector>

#include "compute.h"

namespace LAMMPS_NS {

class PairMDCG;

class ComputeMDCGHeatFlux : public Compute {
 public:
  ComputeMDCGHeatFlux(class LAMMPS *, int, char **);
  ~ComputeMDCGHeatFlux() override;

  void init() override;
  void init_list(int, class NeighList *) override;
  void compute_vector() override;
  double memory_usage() override;

  int pack_forward_comm(int, int *, double *, int, int *) override;
  void unpack_forward_comm(int, int, double *) override;

 private:
  PairMDCG *pair = nullptr;
  class NeighList *list = nullptr;    // contains the neighbours of ghosts too
  std::vector<double> velocities;     // [nall][3]

  // An open system of the group's atoms and all atoms and images that send messages to them.
  std::vector<std::int32_t> node;                // [nall] node of an atom or ghost, -1: none
  std::vector<std::int32_t> atoms;               // [num_nodes] atom or ghost of a node
  std::int64_t num_own = 0;                      // nodes of the group's atoms, which come first
  std::vector<std::int32_t> types;               // [num_nodes]
  std::vector<std::int32_t> sender, receiver;    // [num_edges]
  std::vector<double> positions, forces;         // [num_nodes][3]
  std::vector<double> energies, weights;         // [num_nodes]

  int layers() const;
  void unfold();
  void add(int i);
  std::string evaluate(double *flux, double *carried);
};

}    // namespace LAMMPS_NS

#endif
