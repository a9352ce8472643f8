// SPDX-License-Identifier: GPL-2.0-only
#include "ghost_exchange.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace mdcg_lammps {

namespace {

constexpr int TAG = 7203;
constexpr std::int64_t MAX_MESSAGE = 1 << 30;    // bytes, which MPI counts with an int

template <typename Item> void add(char *target, const char *source, int width)
{
  auto *to = reinterpret_cast<Item *>(target);
  auto *from = reinterpret_cast<const Item *>(source);
  for (int c = 0; c < width; c++) to[c] += from[c];
}

std::vector<int> offsets(const std::vector<int> &counts)
{
  std::vector<int> out(counts.size(), 0);
  for (std::size_t i = 1; i < counts.size(); i++) out[i] = out[i - 1] + counts[i - 1];
  return out;
}

// A stable counting sort by a key that is not negative.
template <typename Key>
std::vector<std::int32_t> sorted(const std::vector<std::int32_t> &atoms, const Key &key)
{
  int most = -1;
  for (const std::int32_t i : atoms) most = std::max(most, key(i));
  std::vector<std::size_t> place(most + 2, 0);
  for (const std::int32_t i : atoms) place[key(i) + 1]++;
  std::partial_sum(place.begin(), place.end(), place.begin());
  std::vector<std::int32_t> out(atoms.size());
  for (const std::int32_t i : atoms) out[place[key(i)]++] = i;
  return out;
}

}    // namespace

std::vector<std::int32_t> by_owner(const std::vector<std::int32_t> &atoms,
                                   const std::vector<double> &owner)
{
  const auto numbered = sorted(atoms, [&](int i) { return AtomId::atom(owner[i]); });
  return sorted(numbered, [&](int i) { return AtomId::rank(owner[i]); });
}

std::vector<int> GhostExchange::plan(MPI_Comm world, const std::vector<double> &wanted)
{
  world_ = world;
  int ranks = 1;
  MPI_Comm_size(world, &ranks);
  std::vector<int> mine(ranks, 0), theirs(ranks, 0), names, asked;
  for (const double id : wanted) {
    mine[AtomId::rank(id)]++;
    names.push_back(AtomId::atom(id));
  }
  MPI_Alltoall(mine.data(), 1, MPI_INT, theirs.data(), 1, MPI_INT, world);
  std::vector<int> to = offsets(mine), from = offsets(theirs);
  asked.resize(from.back() + theirs.back());
  MPI_Alltoallv(names.data(), mine.data(), to.data(), MPI_INT, asked.data(), theirs.data(),
                from.data(), MPI_INT, world);
  wanted_ = parts(mine);
  asked_ = parts(theirs);
  // where each other rank's list places the rows of this rank
  std::vector<int> there_sent(ranks), there_ghost(ranks);
  MPI_Alltoall(from.data(), 1, MPI_INT, there_sent.data(), 1, MPI_INT, world);
  MPI_Alltoall(to.data(), 1, MPI_INT, there_ghost.data(), 1, MPI_INT, world);
  peers.clear();
  for (int rank = 0; rank < ranks; rank++)
    if (mine[rank] || theirs[rank])
      peers.push_back({rank, from[rank], theirs[rank], to[rank], mine[rank], there_sent[rank],
                       there_ghost[rank]});
  return asked;
}

std::vector<GhostExchange::Part> GhostExchange::parts(const std::vector<int> &counts)
{
  std::vector<Part> out;
  std::int64_t at = 0;
  for (std::size_t rank = 0; rank < counts.size(); rank++) {
    if (counts[rank]) out.push_back({static_cast<int>(rank), at, at + counts[rank]});
    at += counts[rank];
  }
  return out;
}

// Calls post(first byte, bytes, rank, request) for each message.
template <typename Post>
void GhostExchange::for_each_message(const std::vector<Part> &parts, int row_bytes,
                                     const Post &post)
{
  const std::int64_t max_rows = std::max<std::int64_t>(1, MAX_MESSAGE / row_bytes);
  for (const Part &part : parts)
    for (std::int64_t row = part.begin; row < part.end; row += max_rows) {
      const int bytes = static_cast<int>(std::min(max_rows, part.end - row)) * row_bytes;
      requests_.emplace_back();
      post(row * row_bytes, bytes, part.rank, &requests_.back());
    }
}

void GhostExchange::exchange(const std::vector<Part> &out, const char *source,
                             const std::vector<Part> &in, char *target, int row_bytes)
{
  requests_.clear();
  for_each_message(in, row_bytes, [&](std::int64_t at, int bytes, int rank, MPI_Request *request) {
    MPI_Irecv(target + at, bytes, MPI_BYTE, rank, TAG, world_, request);
  });
  for_each_message(out, row_bytes, [&](std::int64_t at, int bytes, int rank, MPI_Request *request) {
    MPI_Isend(source + at, bytes, MPI_BYTE, rank, TAG, world_, request);
  });
  statuses_.resize(requests_.size());
  MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), statuses_.data());
}

void GhostExchange::forward_rows(const char *rows, char *ghosts, int row_bytes)
{
  exchange(asked_, rows, wanted_, ghosts, row_bytes);
}

void GhostExchange::reverse_rows(const char *ghosts, char *rows, int row_bytes)
{
  exchange(wanted_, ghosts, asked_, rows, row_bytes);
}

void GhostExchange::forward(const char *rows, char *ghosts, int row_bytes)
{
  buffer_.resize(sent.size() * row_bytes);
  char *at = buffer_.data();
  for (const std::int64_t row : sent) {
    if (row >= 0)
      std::memcpy(at, rows + row * row_bytes, row_bytes);
    else
      std::memset(at, 0, row_bytes);
    at += row_bytes;
  }
  forward_rows(buffer_.data(), ghosts, row_bytes);
}

void GhostExchange::reverse(char *rows, char *ghosts, int width, int item_bytes)
{
  const int row_bytes = width * item_bytes;
  buffer_.resize(sent.size() * row_bytes);
  reverse_rows(ghosts, buffer_.data(), row_bytes);
  const char *at = buffer_.data();
  for (const std::int64_t row : sent) {
    if (row >= 0) {
      if (item_bytes == 4)
        add<float>(rows + row * row_bytes, at, width);
      else
        add<double>(rows + row * row_bytes, at, width);
    }
    at += row_bytes;
  }
}

void GhostExchange::gather(const void *mine, void *all, int bytes) const
{
  if (bytes)
    MPI_Allgather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, world_);
  else
    MPI_Barrier(world_);
}

void GhostExchange::sum(std::int64_t *values, std::int64_t count) const
{
  constexpr std::int64_t MOST = 1 << 28;    // items of a message, whose number is an int
  for (std::int64_t at = 0; at < count; at += MOST)
    MPI_Allreduce(MPI_IN_PLACE, values + at, static_cast<int>(std::min(MOST, count - at)),
                  MPI_INT64_T, MPI_SUM, world_);
}

double GhostExchange::bytes() const
{
  return bytes_of(buffer_, sent, wanted_, asked_, peers);
}

}    // namespace mdcg_lammps
