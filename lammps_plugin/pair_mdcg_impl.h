// SPDX-License-Identifier: GPL-2.0-only
// What pair_mdcg.cpp (input and set-up) and pair_mdcg_compute.cpp (every step) share.
#ifndef LMP_PAIR_MDCG_IMPL_H
#define LMP_PAIR_MDCG_IMPL_H

#include <cstdint>
#include <string>
#include <vector>

#include "mdcg_library.h"
#include "pair_mdcg.h"

namespace LAMMPS_NS {

struct PairMDCG::Impl {
  const mdcg_lammps::Library *library = nullptr;
  mdcg_model *model = nullptr;
  mdcg_info info{};
  std::string device = "auto", file;
  int threads = 0;    // 0: those of LAMMPS
  double energy_unit = 1.0;
  bool announced = false, excluded = false, bonds_checked = false;

  std::vector<int> kind;             // [ntypes + 1] type in the package, -1: NULL
  std::vector<std::int32_t> node;    // [nall] node of an atom, -1: none; empty: the same numbers
  std::vector<std::int32_t> atom;    // [num_nodes] atom of a node; empty: the same numbers
  std::int64_t num_local = 0, num_nodes = 0;
  std::vector<std::int32_t> types, sender, receiver;
  std::vector<double> positions, forces, energies, virials;
  bool fresh = true;    // the engine has not seen these edges yet
  int known_local = -1, known_all = -1;

  // One rank: ghosts are images of its own atoms, and edges lead to those, across the boundary.
  struct ImageEdge {
    std::int64_t edge;
    std::int32_t ghost;
  };
  bool folded = false;
  std::vector<double> owner;    // [nall] atom that an atom is, or is an image of
  std::vector<ImageEdge> image_edges;
  std::vector<double> shifts;    // [num_edges][3]; 0 but for image_edges

  // rows of the exchange under way
  char *rows = nullptr;
  int row_bytes = 0, row_width = 0, item_bytes = 0;
  bool rows_of_atoms = false;    // not of nodes

  std::int64_t node_of(int i) const { return node.empty() ? i : node[i]; }
  int atom_of(std::int64_t n) const { return atom.empty() ? static_cast<int>(n) : atom[n]; }
  std::int64_t row_of(int i) const { return rows_of_atoms ? i : node_of(i); }
  int doubles() const { return (row_bytes + 7) / 8; }
  void take_rows(void *of, int width, int bytes_of_item)
  {
    rows = static_cast<char *>(of);
    row_width = width;
    item_bytes = bytes_of_item;
    row_bytes = width * bytes_of_item;
  }
  void forget_model()
  {
    if (model) library->close(model);
    model = nullptr;
  }
  ~Impl() { forget_model(); }
};

}    // namespace LAMMPS_NS

#endif
