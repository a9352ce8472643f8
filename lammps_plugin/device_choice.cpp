// SPDX-License-Identifier: GPL-2.0-only
#include "device_choice.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <vector>

namespace mdcg_lammps {

namespace {

// The device's uuid. Cards of AMD may share it, so theirs has the device's number, too.
using Identity = std::array<unsigned char, 20>;

// The ranks of one node of the cluster. LAMMPS' MPI stubs are older than MPI 3.
class Node {
 public:
  explicit Node(MPI_Comm world)
  {
#if defined(MPI_VERSION) && MPI_VERSION >= 3
    int me = 0;
    MPI_Comm_rank(world, &me);
    MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, me, MPI_INFO_NULL, &ranks);
#else
    MPI_Comm_dup(world, &ranks);
#endif
    MPI_Comm_rank(ranks, &rank);
    MPI_Comm_size(ranks, &count);
  }
  ~Node() { MPI_Comm_free(&ranks); }
  Node(const Node &) = delete;
  Node &operator=(const Node &) = delete;

  MPI_Comm ranks;
  int rank = 0, count = 1;
};

// Returns the largest number of ranks on one device, and the number of devices that are used.
std::array<int, 2> count_ranks(MPI_Comm world, const Node &node, const Identity &mine)
{
  std::vector<Identity> all(node.count);
  MPI_Allgather(mine.data(), sizeof mine, MPI_CHAR, all.data(), sizeof mine, MPI_CHAR, node.ranks);
  std::map<Identity, int> ranks;
  int most = 0;
  for (const Identity &each : all) most = std::max(most, ++ranks[each]);
  int used = node.rank == 0 ? static_cast<int>(ranks.size()) : 0;
  std::array<int, 2> found{};
  MPI_Allreduce(&most, &found[0], 1, MPI_INT, MPI_MAX, world);
  MPI_Allreduce(&used, &found[1], 1, MPI_INT, MPI_SUM, world);
  return found;
}

}    // namespace

DeviceChoice DeviceChoice::make(MPI_Comm world, const Library &library, const std::string &asked)
{
  DeviceChoice choice;
  const Node node(world);
  mdcg_device device{};
  device.size = sizeof(device);
  choice.name = asked;
  bool found = library.find_device(asked.c_str(), &device) == MDCG_OK;
  if (found && (asked == "cuda" || asked == "hip")) {
    choice.name = asked + ":" + std::to_string(node.rank % device.count);
    found = library.find_device(choice.name.c_str(), &device) == MDCG_OK;
  }
  if (!found) choice.reason = library.last_error();
  const bool hip = asked.compare(0, 3, "hip") == 0;
  Identity mine{};
  std::copy(device.uuid, device.uuid + 16, mine.begin());
  if (hip) std::memcpy(&mine[16], &device.number, 4);
  const auto [most, used] = count_ranks(world, node, mine);
  if (most > 1)
    choice.advice =
        "up to " + std::to_string(most) +
        " ranks share a device and take turns: run as many ranks as there are devices "
        "(" +
        std::to_string(used) + " used here)" +
        (hip ? "" : ", or start NVIDIA's MPS, with which they compute at the same time");
  return choice;
}

}    // namespace mdcg_lammps
