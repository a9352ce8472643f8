// SPDX-License-Identifier: GPL-2.0-only
// Data that the source files of the pair style share.
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
  std::vector<int> kind;              // [ntypes + 1] index of the type in the package, -1: NULL
  std::vector<std::int32_t> types;    // [num_nodes]
  double energy = 0.0;                // of the local nodes, eV
  std::vector<double> forces;         // [num_nodes][3] eV/Å
  std::vector<double> inputs;         // [info.num_inputs] such as the charge of the system
  mdcg_list list{};                   // identifies the edges, so that the model reads them once
  bool announced = false;
};

// The atoms that are nodes of a graph: the local atoms, then the nearby atoms of other ranks, each
// once. LAMMPS' ghosts are images of atoms of this rank or of other ranks. All images of an atom
// are one node, which is at the position of one image; the other images are some cells away.
struct PairMDCG::Nodes {
  std::vector<std::int32_t> node;    // [nall] node of an atom or ghost, -1: none
  std::vector<std::int32_t> atom;    // [num_nodes] atom of a node
  std::int64_t num_local = 0, num_nodes = 0;
  std::int64_t num_inner = 0;       // the last local nodes, which have no neighbours on other ranks
  std::vector<double> positions;    // [num_nodes][3]
  std::vector<std::array<int, 3>> cells;    // [num_cells] from image to node; first {0, 0, 0}
  std::vector<std::int32_t> cell_ghost;     // [num_cells] one image in each cell; first -1
  std::map<std::array<int, 3>, std::int32_t> cell_number;    // index into cells
  std::int32_t last_image = 0;                               // last result of image_of
  std::vector<double> image_shifts;                          // [num_cells][3] Å
  // [num_copies] the images away from their node's position, for an engine that makes the edges.
  std::vector<std::int32_t> copy_node, copy_image;
  std::array<double, 9> box{};      // [3][3] cell vectors; shifts are multiples of them
  std::array<int, 3> periodic{};    // which directions are periodic
  mdcg_lammps::GhostExchange ghosts;

  bool is_image(int ghost) const { return node[ghost] >= 0 && atom[node[ghost]] != ghost; }
  std::int32_t image_of(int ghost, const Atom *atoms, const Domain *domain);
  void find_copies(const Atom *atoms, const Domain *domain);
  void update_positions(const Atom *atoms);
  void update_shifts(const Atom *atoms, const Domain *domain);
  double bytes() const;
};

// The packages and types that a restart file names.
struct PairMDCG::Restored {
  std::vector<std::string> files, digests, names;
};

// What pair_style sets.
struct PairMDCG::Options {
  std::string device = "auto";
  std::string precision;    // empty: the package's precision
  std::string kernels;      // empty: auto
  std::string functional, damping = "bj";
  std::string memory_size;                 // empty: all memory of the device, and no domains
  double dispersion_cutoff = 0.0;          // Å; 0: the engine's default
  int threads = 0;                         // 0: as many as LAMMPS uses
  std::string exchange = "auto";           // or host, or peer
  bool first_only = false;                 // results are the first member's, not the mean
  bool fixed_waves = false;                // long-range sums keep the waves of the first cell
  std::map<std::string, double> inputs;    // given by pair_style or pair_modify, by name
};

struct PairMDCG::Impl : Options {
  const mdcg_lammps::Library *library = nullptr;
  std::vector<Member> members;
  std::vector<std::string> settings, names;    // of the last pair_style and pair_coeff
  Restored restored;    // empty if no restart file was read, or after pair_coeff has accepted it
  std::string advice;
  double energy_unit = 1.0, r_max = 0.0;
  bool set_up = false;          // init_style has seen the last pair_style and pair_coeff
  std::string warned_masses;    // the last warning about masses
  std::string logged_inputs;    // values of inputs that the log has

  bool device_to_device = false;               // rows of ghosts bypass the host
  std::string through_host;                    // why they do not; empty if no device sends any
  int deviations_asked = 0;                    // set by fix pair before the step
  bigint deviations_step = -1;                 // the step that forces_std belongs to
  std::vector<double> forces_std;              // [nlocal] units of the run
  int charges_asked = 0;                       // set by fix pair before the step
  bigint charges_step = -1;                    // the step that charges belong to
  std::vector<double> charges, descriptors;    // [nlocal] e, [num_local][width]

  Nodes nodes;                                   // of the members' graph
  std::vector<std::int32_t> sender, receiver;    // [num_edges]
  std::vector<std::int32_t> image;               // [num_edges] index into nodes.cells
  std::vector<double> energies, virials;         // [num_local], [num_nodes][9]
  bool device_makes_list = false;    // the device makes the edges, and LAMMPS makes no list
  double skin = -1.0;                // Å, at the last set-up
  int last_nlocal = -1, last_nall = -1;
  std::vector<double> owner;    // [nall] AtomId

  // The dispersion model in the first package, which has a longer cutoff than the members.
  std::unique_ptr<Member> dispersion;
  Nodes dispersion_nodes;    // used with several ranks; one rank uses `nodes`

  bool is_null(int type) const { return members.front().kind[type] < 0; }
};

}    // namespace LAMMPS_NS

#endif
