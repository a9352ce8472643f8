// SPDX-License-Identifier: GPL-2.0-only
// Exchange of rows of ghost atoms: each rank gets every row that its edges lead to once, directly
// from the owner.
#ifndef MDCG_GHOST_EXCHANGE_H
#define MDCG_GHOST_EXCHANGE_H

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "mdcg.h"

namespace mdcg_lammps {

// An atom as all ranks know it: rank and number there in one exact double, so that LAMMPS can send
// it to ghosts.
class AtomId {
 public:
  static double of(int rank, int atom) { return rank * 2147483648.0 + atom; }
  static int rank(double id) { return static_cast<int>(id / 2147483648.0); }
  static int atom(double id) { return static_cast<int>(id - rank(id) * 2147483648.0); }
};

// Atoms in the order of their ids in `owner`, those of equal ids as they come; in linear time.
std::vector<std::int32_t> by_owner(const std::vector<std::int32_t> &atoms,
                                   const std::vector<double> &owner);

class GhostExchange {
 public:
  // Collective. `wanted`: ids of atoms of other ranks, ascending, each once. Returns the numbers of
  // the atoms of this rank that the others want; `sent` must then be set to their rows (-1: none,
  // zeros are sent).
  std::vector<int> plan(MPI_Comm world, const std::vector<double> &wanted);
  std::vector<std::int64_t> sent;
  // The same by rank, for devices that exchange rows without the host; set by plan.
  std::vector<mdcg_peer> peers;

  // `ghosts` is the first of the rows of the wanted atoms, in their order, which follow each other.
  void forward(const char *rows, char *ghosts, int row_bytes);
  // Adds rows of ghosts to those of their owners, in the order of the ranks.
  void reverse(char *rows, char *ghosts, int width, int item_bytes);
  // The same for rows that the caller packs and adds: one row for each of `sent`.
  void forward_rows(const char *rows, char *ghosts, int row_bytes);
  void reverse_rows(const char *ghosts, char *rows, int row_bytes);

  // Gathers a value from every rank; with zero bytes it is a barrier.
  void gather(const void *mine, void *all, int bytes) const;
  // 1 if it is 1 on any rank.
  int any(int flag) const;

  double bytes() const;

 private:
  struct Part {
    int rank;
    std::int64_t begin, end;
  };
  static std::vector<Part> parts(const std::vector<int> &counts);
  template <typename Post> void each(const std::vector<Part> &of, int row_bytes, const Post &post);
  void move(const std::vector<Part> &out, const char *source, const std::vector<Part> &in,
            char *target, int row_bytes);

  MPI_Comm world_ = MPI_COMM_NULL;
  std::vector<Part> wanted_, asked_;
  std::vector<char> buffer_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
};

}    // namespace mdcg_lammps

#endif
