// SPDX-License-Identifier: GPL-2.0-only
// pair_style mdcg: machine-learned potentials from .mdcg packages, evaluated by libmdcg.so.
#ifndef LMP_PAIR_MDCG_H
#define LMP_PAIR_MDCG_H

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pair.h"

namespace LAMMPS_NS {

class PairMDCG : public Pair {
 public:
  explicit PairMDCG(class LAMMPS *);
  ~PairMDCG() override;

  void compute(int, int) override;
  void settings(int, char **) override;
  void coeff(int, char **) override;
  void init_style() override;
  double init_one(int, int) override;
  double memory_usage() override;
  void add_tally_callback(class Compute *) override;

  int pack_forward_comm(int, int *, double *, int, int *) override;
  void unpack_forward_comm(int, int, double *) override;

 private:
  friend class ComputeMDCGHeatFlux;    // evaluates the same model with other edges
  struct Impl;
  std::unique_ptr<Impl> impl;

  void allocate();
  void all_or_none(const std::string &file, int line, const std::string &reason);
  void announce();
  void check_bonds();
  std::vector<char> ghosts_near() const;
  void take_nodes();
  bool take_types();
  bool new_neighbors();
  std::int32_t image_of(int ghost);
  bool is_image(int ghost) const;
  bool can_do_without_list() const;
  void take_neighbors();
  void take_copies();
  void take_positions();
  void take_shifts();
  void add_results(double energy, const double *sum);
};

}    // namespace LAMMPS_NS

#endif
