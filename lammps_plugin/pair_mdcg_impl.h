// SPDX-License-Identifier: GPL-2.0-only
// What pair_mdcg.cpp (input and set-up) and pair_mdcg_compute.cpp (every step) share.
#ifndef LMP_PAIR_MDCG_IMPL_H
#define LMP_PAIR_MDCG_IMPL_H

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ghost_exchange.h"
#include "mdcg_library.h"
#include "pair_mdcg.h"

namespace LAMMPS_NS {

class Atom;
class Domain;

// One package of a committee; a single package is a committee of one.
struct PairMDCG::Member {
  std::string file;
  std::unique_ptr<mdcg_model, decltype(&mdcg_close)> model{nullptr, nullptr};
  mdcg_info info{};
  std::vector<int> kind;              // [ntypes + 1] type in the package, -1: NULL
  std::vector<std::int32_t> types;    // [num_nodes]
  double energy = 0.0;                // of the local nodes, eV
  std::vector<double> forces;         // [num_nodes][3] eV/Å
  mdcg_list list{};                   // identifies the edges, so that the model reads them once
  bool announced = false;
};

// The atoms that are nodes of a graph: local ones, then those of other ranks within reach, each
// once. Ghosts are images of atoms of this rank or of others. All images of an atom are one node,
// and one image is at its position; the others are a number of cells away.
struct PairMDCG::Nodes {
  std::vector<std::int32_t> node;    // [nall] node of an atom or image, -1: none
  std::vector<std::int32_t> atom;    // [num_nodes] atom of a node
  std::int64_t num_local = 0, num_nodes = 0;
  std::vector<double> positions;
  std::vector<std::array<int, 3>> cells;                     // first {0, 0, 0}
  std::vector<std::int32_t> cell_ghost;                      // [cells] a ghost of each; first -1
  std::map<std::array<int, 3>, std::int32_t> cell_number;    // place of each in cells
  std::int32_t last_image = 0;                               // what image_of has found last
  std::vector<double> image_shifts;                          // [cells][3] Å
  // Where the engine finds the neighbours of several ranks: all images that are not at the
  // positions of their nodes.
  std::vector<std::int32_t> copy_node, copy_image;
  std::array<double, 9> box{};      // cell vectors; shifts are multiples of them
  std::array<int, 3> periodic{};    // which of them repeat
  mdcg_lammps::GhostExchange ghosts;

  bool is_image(int ghost) const { return node[ghost] >= 0 && atom[node[ghost]] != ghost; }
  std::int32_t image_of(int ghost, const Atom *atoms, const Domain *domain);
  void take_copies(const Atom *atoms, const Domain *domain);
  void take_positions(const Atom *atoms);
  void take_shifts(const Atom *atoms, const Domain *domain);
  double bytes() const;
};

// What a restart file names: the packages that it was written with, and their types.
struct PairMDCG::Restored {
  std::vector<std::string> files, digests, names;
};

struct PairMDCG::Impl {
  const mdcg_lammps::Library *library = nullptr;
  std::vector<Member> members;
  std::vector<std::string> settings, names;    // of the last commands pair_style and pair_coeff
  Restored restored;                           // empty: not restored, or accepted since
  std::string device = "auto", advice;
  std::string precision;            // empty: that of the package
  std::string kernels;              // empty: auto
  int threads = 0;                  // 0: those of LAMMPS
  bool device_to_device = false;    // rows of ghosts do not pass through the host
  double energy_unit = 1.0, r_max = 0.0;
  bool set_up = false;          // init_style has seen the last pair_style and pair_coeff
  std::string warned_masses;    // the last warning about masses

  bool exchanges = false;            // any member has some between its layers
  bool first_alone = false;          // results are those of the first member, not the mean
  int deviations_asked = 0;          // set by fix pair before the step
  bigint deviations_step = -1;       // of forces_std
  std::vector<double> forces_std;    // [nlocal] units of the run

  Nodes nodes;                                   // of the members' graph
  std::vector<std::int32_t> sender, receiver;    // of its edges
  std::vector<std::int32_t> image;               // [num_edges] row of cells
  std::vector<double> energies, virials;
  bool own_list = false;    // the device makes the edges, and LAMMPS makes no list
  double skin = -1.0;       // Å, of the last set-up
  int known_local = -1, known_all = -1;
  std::vector<double> owner;    // [nall] AtomId

  // The dispersion that the first package holds, as if it were another member. It sees further.
  std::string functional, damping = "bj";
  double dispersion_cutoff = 0.0;    // Å; 0: that of the engine
  std::unique_ptr<Member> dispersion;
  Nodes far;    // of its neighbours, of several ranks; of one rank they are the nodes above

  bool is_null(int type) const { return members.front().kind[type] < 0; }
};

}    // namespace LAMMPS_NS

#endif
