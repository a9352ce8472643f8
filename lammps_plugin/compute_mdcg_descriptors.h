// SPDX-License-Identifier: GPL-2.0-only
// compute mdcg/descriptors: the features of each atom from which a model computes its energy.
#ifndef LMP_COMPUTE_MDCG_DESCRIPTORS_H
#define LMP_COMPUTE_MDCG_DESCRIPTORS_H

#include "compute.h"

namespace LAMMPS_NS {

class PairMDCG;

class ComputeMDCGDescriptors : public Compute {
 public:
  ComputeMDCGDescriptors(class LAMMPS *, int, char **);
  ~ComputeMDCGDescriptors() override;

  void init() override;
  void compute_peratom() override;
  double memory_usage() override;

 private:
  PairMDCG *pair = nullptr;
  int nmax = 0;    // rows of array_atom

  PairMDCG *find_pair() const;
  int columns() const;
};

}    // namespace LAMMPS_NS

#endif
