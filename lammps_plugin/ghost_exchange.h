// SPDX-License-Identifier: GPL-2.0-only
// Exchange of rows of ghost atoms. Each rank gets the row of every atom that its edges need once,
// directly from the rank that owns it.
#ifndef MDCG_GHOST_EXCHANGE_H
#define MDCG_GHOST_EXCHANGE_H

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "mdcg.h"

namespace mdcg_lammps {

// Identifies an atom on all ranks: its rank and its index there in one double, which LAMMPS can
// send to ghosts. A double holds both exactly.
class AtomId {
 public:
  static double of(int rank, int atom) { return rank * 2147483648.0 + atom; }
  static int rank(double id) { return static_cast<int>(id / 2147483648.0); }
  static int atom(double id) { return static_cast<int>(id - rank(id) * 2147483648.0); }
};

// Bytes of memory that vectors hold.
template <typename... Item> double bytes_of(const std::vector<Item> &...vectors)
{
  return (0.0 + ... + static_cast<double>(vectors.capacity() * sizeof(Item)));
}

// Sorts atoms by their ids in `owner`, stably and in linear time.
std::vector<std::int32_t> by_owner(const std::vector<std::int32_t> &atoms,
                                   const std::vector<double> &owner);

class GhostExchange {
 public:
  // `wanted` holds ids of atoms of other ranks, ascending, each once. Returns the indices of the
  // atoms of this rank that others want. The caller must then set `sent` to the rows of these
  // atoms (-1: zeros are sent). Collective.
  std::vector<int> plan(MPI_Comm world, const std::vector<double> &wanted);
  std::vector<std::int64_t> sent;
  // What plan() has found for each rank, for devices that exchange rows without the host.
  std::vector<mdcg_peer> peers;

  // Copies rows of owners to `ghosts`, the contiguous rows of the wanted atoms.
  void forward(const char *rows, char *ghosts, int row_bytes);
  // Adds the rows of ghosts to the rows of their owners, in the order of the ranks.
  void reverse(char *rows, char *ghosts, int width, int item_bytes);
  // The same without packing and adding: `rows` has one row for each of `sent`.
  void forward_rows(const char *rows, char *ghosts, int row_bytes);
  void reverse_rows(const char *ghosts, char *rows, int row_bytes);

  // Gathers `bytes` bytes from every rank; with 0 it is a barrier.
  void gather(const void *mine, void *all, int bytes) const;

  // Replaces values by their sums over all ranks.
  void sum(std::int64_t *values, std::int64_t count) const;

  double bytes() const;

 private:
  // The rows begin .. end - 1 of the ghosts or of `sent` that come from or go to one rank.
  struct Part {
    int rank;
    std::int64_t begin, end;
  };
  static std::vector<Part> parts(const std::vector<int> &counts);
  template <typename Post>
  void for_each_message(const std::vector<Part> &parts, int row_bytes, const Post &post);
  void exchange(const std::vector<Part> &out, const char *source, const std::vector<Part> &in,
                char *target, int row_bytes);

  MPI_Comm world_ = MPI_COMM_NULL;
  std::vector<Part> wanted_, asked_;
  std::vector<char> buffer_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
};

}    // namespace mdcg_lammps

#endif
