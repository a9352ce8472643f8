// SPDX-License-Identifier: GPL-2.0-only
// pair_style mdcg: machine-learned potentials from .mdcg packages, evaluated by libmdcg.so.
#ifndef LMP_PAIR_MDCG_H
#define LMP_PAIR_MDCG_H

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "mdcg.h"
#include "pair.h"

namespace LAMMPS_NS {

class PairMDCG : public Pair {
 public:
  explicit PairMDCG(class LAMMPS *);
  ~PairMDCG() override;

  void compute(int, int) override;
  void settings(int, char **) override;
  void coeff(int, char **) override;
  void modify_params(int, char **) override;
  void init_style() override;
  double init_one(int, int) override;
  double memory_usage() override;
  void add_tally_callback(class Compute *) override;
  void write_restart(FILE *) override;
  void read_restart(FILE *) override;
  void write_restart_settings(FILE *) override;
  void read_restart_settings(FILE *) override;
  void *extract(const char *, int &) override;
  void *extract_peratom(const char *, int &) override;

  int pack_forward_comm(int, int *, double *, int, int *) override;
  void unpack_forward_comm(int, int, double *) override;

 private:
  friend class ComputeMDCGDescriptors;    // evaluates the same model without forces
  friend class ComputeMDCGHeatFlux;       // evaluates the same model with other edges
  struct Options;
  struct Impl;
  struct Member;
  struct Nodes;
  struct Exchange;
  struct Restored;
  std::unique_ptr<Impl> impl;

  void allocate();
  void clear_types();
  void all_or_none(const std::string &file, int line, const std::string &reason);
  void require_setup();
  void compare_ranks();
  void check_masses();
  int read_input_keyword(const std::string &command, int narg, char **arg);
  void find_inputs();
  static std::string keyword_of(const std::string &name);
  void open_members(const std::vector<std::string> &files);
  void open_member(Member &member, const mdcg_options &options, const mdcg_model *network);
  void open_dispersion(mdcg_options options);
  void choose_exchange();
  std::string why_not_peers();
  std::vector<std::string> names_from_labels();
  void match_names(Member &member);
  void check_restored();
  void announce(Member &member);
  bool takes_part(int i) const;
  void check_bonds();
  void check_exclusions();
  struct Bounds;
  Bounds local_bounds() const;
  std::vector<char> ghosts_near(const Bounds &bounds, double r_max) const;
  std::vector<char> near_other_ranks(const Bounds &bounds, const std::vector<char> &seen) const;
  std::vector<char> ghosts_listed() const;
  void find_nodes(Nodes &nodes, const std::vector<char> &seen, const std::vector<char> &near);
  bool read_types();
  bool read_types(Member &member, const Nodes &nodes);
  bool neighbors_changed();
  bool has_exclusions() const;
  bool can_do_without_list() const;
  void check_dispersion();
  bool strains_atoms_alone() const;    // a command strains atoms and ghosts, but not the box
  bool has_long_range_sum() const;
  void update_graph();
  void copy_edges();
  mdcg_system system_of(Nodes &nodes, bool make_edges) const;
  mdcg_system system_of_members();
  std::string engine_error(const Member &member, const std::vector<std::int32_t> &atoms);
  void run_engine(Member &member, const Nodes &nodes, mdcg_system system, Exchange &exchange,
                  const mdcg_results &results);
  int num_descriptors() const;
  void find_descriptors(int groupbit, double **rows);
  void evaluate(Member &member, Nodes &nodes, mdcg_system system, Exchange &exchange,
                double weight);
  void add_results(const Member &member, const Nodes &nodes, const double *sum, double weight);
  void compute_deviations();
};

}    // namespace LAMMPS_NS

#endif
