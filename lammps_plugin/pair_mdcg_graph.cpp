// SPDX-License-Identifier: GPL-2.0-only
// The graph of a step: nodes, edges, and the shifts of edges that cross a periodic boundary.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "atom.h"
#include "comm.h"
#include "domain.h"
#include "error.h"
#include "group.h"
#include "neigh_list.h"
#include "neighbor.h"
#include "pair_mdcg_impl.h"

using namespace LAMMPS_NS;
using mdcg_lammps::AtomId;

// Relative rounding error of ghost positions, which are rounded at each boundary they cross.
static constexpr double ROUNDING = 64.0 * std::numeric_limits<double>::epsilon();

// Whether an atom or ghost is part of the potential. Monte Carlo fixes (gcmc) hide an atom by
// taking it out of group all.
bool PairMDCG::takes_part(int i) const
{
  return !impl->is_null(atom->type[i]) && (atom->mask[i] & 1);
}

namespace {
// Reads the group of comm_modify group, to which ghosts are restricted. LAMMPS has no function for
// that.
struct CommGroup : Comm {
  static int of(const Comm *comm) { return comm->*(&CommGroup::bordergroup); }
};
}    // namespace

// Whether LAMMPS' neighbour list leaves out pairs of atoms of the potential. An exclusion between
// two groups counts only if both contain atoms of the potential: Monte Carlo fixes exclude a group
// of hidden atoms. Collective.
bool PairMDCG::has_exclusions() const
{
  if (neighbor->nex_type || neighbor->nex_mol || neighbor->includegroup || CommGroup::of(comm))
    return true;
  if (!neighbor->nex_group) return false;
  int groups = 0;    // bits of the groups with atoms of the potential
  for (int i = 0; i < atom->nlocal; i++)
    if (takes_part(i)) groups |= atom->mask[i];
  MPI_Allreduce(MPI_IN_PLACE, &groups, 1, MPI_INT, MPI_BOR, world);
  for (int e = 0; e < neighbor->nex_group; e++)
    if (groups & group->bitmask[neighbor->ex1_group[e]] &&
        groups & group->bitmask[neighbor->ex2_group[e]])
      return true;
  return false;
}

// Refuses excluded pairs where LAMMPS' neighbour list, which leaves them out, is not used. Pairs
// can be excluded after the pair style was set up, so each new graph is checked. Collective.
void PairMDCG::check_exclusions()
{
  const bool long_range = has_long_range_sum();
  if (!(impl->dispersion || long_range || impl->device_makes_list) || !has_exclusions()) return;
  if (impl->dispersion || long_range)
    error->all(FLERR,
               std::string("pair_style mdcg: ") +
                   (long_range ? "the long-range sum" : "dispersion") +
                   " acts between all atoms, and neigh_modify exclude or include, or comm_modify "
                   "group, leave some out, expected none of them");
  error->all(FLERR, "pair_style mdcg: pairs were excluded from the neighbour list after the pair "
                    "style was set up without one, expected neigh_modify exclude before the run, "
                    "or device cpu");
}

// Refuses special_bonds 0 if it removes pairs of the potential from LAMMPS' neighbour list. Fixes
// make bonds during a run, so each new list is checked. Collective.
void PairMDCG::check_bonds()
{
  bool removed[4] = {};
  for (int k = 1; k < 4; k++) removed[k] = neighbor->special_flag[k] == 0;
  if (!removed[1] && !removed[2] && !removed[3]) return;
  if (atom->molecular == Atom::TEMPLATE)
    all_or_none(FLERR,
                "special_bonds may leave out bonded neighbours, which the potential needs and "
                "atom_style template does not list, expected special_bonds lj/coul 1 1 1");
  if (atom->molecular != Atom::MOLECULAR || !atom->special || !atom->map_style) return;
  std::string reason;
  for (int i = 0; i < atom->nlocal; i++) {
    if (!takes_part(i)) continue;
    for (int s = 0; s < atom->nspecial[i][2]; s++) {
      const int which = s < atom->nspecial[i][0] ? 1 : s < atom->nspecial[i][1] ? 2 : 3;
      const int j = removed[which] ? atom->map(atom->special[i][s]) : -1;
      if (j >= 0 && takes_part(j))
        reason = "special_bonds leaves out bonded neighbours, such as atoms " +
                 std::to_string(atom->tag[i]) + " and " + std::to_string(atom->tag[j]) +
                 ", which the potential needs, expected special_bonds lj/coul 1 1 1";
    }
  }
  all_or_none(FLERR, reason);
}

// Returns which ghosts the neighbour list contains.
std::vector<char> PairMDCG::ghosts_listed() const
{
  const int nlocal = atom->nlocal;
  std::vector<char> seen(atom->nghost, comm->nprocs == 1);
  if (comm->nprocs == 1) return seen;
  for (int ii = 0; ii < list->inum; ii++) {
    const int *neighbors = list->firstneigh[list->ilist[ii]];
    for (int jj = 0; jj < list->numneigh[list->ilist[ii]]; jj++) {
      const int j = neighbors[jj] & NEIGHMASK;
      if (j >= nlocal) seen[j - nlocal] = 1;
    }
  }
  return seen;
}

// The bounding box of the local nodes.
struct PairMDCG::Bounds {
  double low[3] = {HUGE_VAL, HUGE_VAL, HUGE_VAL}, high[3] = {-HUGE_VAL, -HUGE_VAL, -HUGE_VAL};
};

PairMDCG::Bounds PairMDCG::local_bounds() const
{
  Bounds found;
  for (int i = 0; i < atom->nlocal; i++) {
    if (!takes_part(i)) continue;
    for (int k = 0; k < 3; k++) {
      found.low[k] = std::min(found.low[k], atom->x[i][k]);
      found.high[k] = std::max(found.high[k], atom->x[i][k]);
    }
  }
  return found;
}

// Returns which ghosts are near the bounding box of the local nodes, if there is no LAMMPS list.
std::vector<char> PairMDCG::ghosts_near(const Bounds &bounds, double r_max) const
{
  const int nlocal = atom->nlocal, nghost = atom->nghost;
  std::vector<char> seen(nghost, comm->nprocs == 1);
  if (comm->nprocs == 1) return seen;
  double **x = atom->x;
  const auto &[low, high] = bounds;
  const double reach = r_max + neighbor->skin + 1e-6;
  for (int j = 0; j < nghost; j++) {
    const double *at = x[nlocal + j];
    seen[j] = 1;
    for (int k = 0; k < 3; k++)
      if (at[k] < low[k] - reach || at[k] > high[k] + reach) seen[j] = 0;
  }
  return seen;
}

// Returns which local atoms may have neighbours among the ghosts of other ranks in `seen`. Such a
// ghost is beyond at least one side of the bounding box of the local nodes. It is assigned to one
// of these sides, and an atom is near if it is near the innermost ghost of any side.
std::vector<char> PairMDCG::near_other_ranks(const Bounds &bounds,
                                             const std::vector<char> &seen) const
{
  const int nlocal = atom->nlocal;
  std::vector<char> near(nlocal, 1);
  const auto &[low, high] = bounds;
  double **x = atom->x, lower[3], upper[3];    // innermost ghosts
  std::fill_n(lower, 3, -HUGE_VAL);
  std::fill_n(upper, 3, HUGE_VAL);
  std::vector<int> others;    // beyond several sides
  // Advances the innermost ghost of the side where it advances least.
  const auto assign = [&](const double *at) {
    int side = -1;
    double least = HUGE_VAL;
    for (int k = 0; k < 3; k++) {
      const double by = at[k] < low[k] ? at[k] - lower[k] : upper[k] - at[k];
      if ((at[k] < low[k] || at[k] > high[k]) && (side < 0 || by < least)) {
        side = k;
        least = by;
      }
    }
    if (side < 0) return false;
    if (at[side] < low[side])
      lower[side] = std::max(lower[side], at[side]);
    else
      upper[side] = std::min(upper[side], at[side]);
    return true;
  };
  for (int j = nlocal; j < nlocal + atom->nghost; j++) {
    if (!seen[j - nlocal] || !takes_part(j) || AtomId::rank(impl->owner[j]) == comm->me) continue;
    int sides = 0;
    for (int k = 0; k < 3; k++) sides += x[j][k] < low[k] || x[j][k] > high[k];
    if (sides > 1)
      others.push_back(j);
    else if (!assign(x[j]))
      return near;    // within the box, which is not that of the rank alone
  }
  for (const int j : others) assign(x[j]);
  const double reach = impl->r_max + neighbor->skin + 1e-6;
  std::fill(near.begin(), near.end(), 0);
  for (int k = 0; k < 3; k++) {
    if (lower[k] > -HUGE_VAL)
      for (int i = 0; i < nlocal; i++) near[i] |= x[i][k] - lower[k] < reach;
    if (upper[k] < HUGE_VAL)
      for (int i = 0; i < nlocal; i++) near[i] |= upper[k] - x[i][k] < reach;
  }
  return near;
}

// Makes atoms nodes of the graph: first the local atoms, those of `near` [nlocal] before the
// others (empty: in their order), then the atoms of other ranks that have ghosts in `seen`
// [nghost], in the order of their owners.
void PairMDCG::find_nodes(Nodes &nodes, const std::vector<char> &seen,
                          const std::vector<char> &near)
{
  Impl &it = *impl;
  const int nlocal = atom->nlocal, nall = nlocal + atom->nghost;
  nodes.node.assign(nall, -1);
  nodes.atom.clear();
  std::vector<std::int32_t> inner;
  for (int i = 0; i < nlocal; i++)
    if (takes_part(i)) (near.empty() || near[i] ? nodes.atom : inner).push_back(i);
  nodes.atom.insert(nodes.atom.end(), inner.begin(), inner.end());
  nodes.num_local = static_cast<std::int64_t>(nodes.atom.size());
  nodes.num_inner = static_cast<std::int64_t>(inner.size());
  for (std::int32_t n = 0; n < nodes.num_local; n++) nodes.node[nodes.atom[n]] = n;

  std::vector<std::int32_t> images;    // ghosts whose atoms other ranks own
  for (int j = nlocal; j < nall; j++) {
    if (!seen[j - nlocal] || !takes_part(j)) continue;
    if (AtomId::rank(it.owner[j]) == comm->me)
      nodes.node[j] = nodes.node[AtomId::atom(it.owner[j])];
    else
      images.push_back(j);
  }
  std::vector<double> wanted;
  for (const int j : mdcg_lammps::by_owner(images, it.owner)) {
    if (wanted.empty() || wanted.back() != it.owner[j]) {
      wanted.push_back(it.owner[j]);
      nodes.atom.push_back(j);
    }
    nodes.node[j] = static_cast<std::int32_t>(nodes.atom.size()) - 1;
  }
  nodes.num_nodes = static_cast<std::int64_t>(nodes.atom.size());
  nodes.cells.assign(1, {0, 0, 0});
  nodes.cell_ghost.assign(1, -1);
  nodes.cell_number = {{nodes.cells[0], 0}};
  nodes.last_image = 0;
  nodes.copy_node.clear();
  nodes.copy_image.clear();
  if (comm->nprocs == 1) return;
  nodes.ghosts.sent.clear();
  for (const int i : nodes.ghosts.plan(world, wanted)) nodes.ghosts.sent.push_back(nodes.node[i]);
}

// Reads the types of the nodes, since commands such as set change them between neighbour lists.
// Returns false if the new type of a node is NULL. An atom whose type is no longer NULL becomes a
// node when the next list is built.
bool PairMDCG::read_types()
{
  Impl &it = *impl;
  for (Member &member : it.members)
    if (!read_types(member, it.nodes)) return false;
  return !it.dispersion ||
         read_types(*it.dispersion, comm->nprocs == 1 ? it.nodes : it.dispersion_nodes);
}

bool PairMDCG::read_types(Member &member, const Nodes &nodes)
{
  member.types.resize(nodes.num_nodes);
  for (std::int64_t n = 0; n < nodes.num_nodes; n++) {
    member.types[n] = member.kind[atom->type[nodes.atom[n]]];
    if (member.types[n] < 0) return false;
  }
  return true;
}

// Returns the index in `cells` of the cell between an image and its node.
std::int32_t PairMDCG::Nodes::image_of(int ghost, const Atom *atoms, const Domain *domain)
{
  const double *from = atoms->x[ghost], *to = atoms->x[atom[node[ghost]]];
  const double *h = domain->h;    // xx yy zz yz xz xy
  std::array<int, 3> cell{};
  double rest[3];
  for (int k = 0; k < 3; k++) rest[k] = to[k] - from[k];
  for (int k = 2; k >= 0; k--) {
    const double cells = rest[k] * domain->h_inv[k];    // close to an integer
    cell[k] = static_cast<int>(cells + (cells < 0.0 ? -0.5 : 0.5));
    if (!domain->triclinic) continue;
    if (k == 2) rest[1] -= h[3] * cell[2], rest[0] -= h[4] * cell[2];
    if (k == 1) rest[0] -= h[5] * cell[1];
  }
  // Neighbouring ghosts are often in one cell, so the last result comes first.
  if (cells[last_image] == cell) return last_image;
  const auto [found, fresh] = cell_number.try_emplace(cell, cells.size());
  if (fresh) {
    cells.push_back(cell);
    cell_ghost.push_back(ghost);
  }
  return last_image = found->second;
}

// Lists all images, for an engine that finds the neighbours.
void PairMDCG::Nodes::find_copies(const Atom *atoms, const Domain *domain)
{
  for (int j = atoms->nlocal; j < static_cast<int>(node.size()); j++) {
    if (!is_image(j)) continue;
    copy_image.push_back(image_of(j, atoms, domain));
    copy_node.push_back(node[j]);
  }
}

// Updates the graph for a new neighbour list or new ghosts. Collective.
void PairMDCG::update_graph()
{
  Impl &it = *impl;
  const int nlocal = atom->nlocal, nall = nlocal + atom->nghost;
  it.owner.resize(nall);
  for (int i = 0; i < nlocal; i++) it.owner[i] = AtomId::of(comm->me, i);
  comm->forward_comm(this);
  check_exclusions();
  if (!it.device_makes_list) check_bonds();
  const Bounds bounds = local_bounds();
  const std::vector<char> seen =
      it.device_makes_list ? ghosts_near(bounds, it.r_max) : ghosts_listed();
  // devices compute atoms without neighbours on other ranks while rows of ghosts travel
  const bool divided = it.device_makes_list && comm->nprocs > 1;
  find_nodes(it.nodes, seen, divided ? near_other_ranks(bounds, seen) : std::vector<char>());
  if (it.device_makes_list)
    it.nodes.find_copies(atom, domain);
  else
    copy_edges();
  if (it.dispersion && comm->nprocs > 1) {
    find_nodes(it.dispersion_nodes, ghosts_near(bounds, it.dispersion->info.r_max), {});
    it.dispersion_nodes.find_copies(atom, domain);
  }
  for (Member &member : it.members) member.list = {};
  if (it.dispersion) it.dispersion->list = {};
  it.last_nlocal = nlocal;
  it.last_nall = nall;
  read_types();
}

// Copies the edges of LAMMPS' neighbour list, skin included.
void PairMDCG::copy_edges()
{
  Impl &it = *impl;
  Nodes &nodes = it.nodes;
  const int nall = atom->nlocal + atom->nghost;
  std::vector<std::int32_t> image_of_ghost(nall, 0);
  for (int j = atom->nlocal; j < nall; j++)
    if (nodes.is_image(j)) image_of_ghost[j] = nodes.image_of(j, atom, domain);
  std::size_t listed = 0, edges = 0;
  for (int ii = 0; ii < list->inum; ii++) listed += list->numneigh[list->ilist[ii]];
  it.sender.resize(listed);
  it.receiver.resize(listed);
  it.image.resize(listed);
  for (int ii = 0; ii < list->inum; ii++) {
    const int i = list->ilist[ii];
    const std::int32_t receiver = nodes.node[i];
    if (receiver < 0) continue;
    const int *neighbors = list->firstneigh[i];
    for (int jj = 0; jj < list->numneigh[i]; jj++) {
      const int j = neighbors[jj] & NEIGHMASK;
      const std::int32_t sender = nodes.node[j];
      if (sender < 0) continue;
      it.sender[edges] = sender;
      it.receiver[edges] = receiver;
      it.image[edges++] = image_of_ghost[j];
    }
  }
  it.sender.resize(edges);
  it.receiver.resize(edges);
  it.image.resize(edges);
}

// Whether the neighbour list of any rank has changed since the last step or is not valid.
// Collective.
bool PairMDCG::neighbors_changed()
{
  if (neighbor->ago == 0) return true;
  int mine = impl->last_nlocal != atom->nlocal || impl->last_nall != atom->nlocal + atom->nghost ||
             !read_types();
  int any = mine;
  if (comm->nprocs > 1) MPI_Allreduce(&mine, &any, 1, MPI_INT, MPI_MAX, world);
  return any != 0;
}

void PairMDCG::Nodes::update_positions(const Atom *atoms)
{
  positions.resize(3 * num_nodes);
  for (std::int64_t n = 0; n < num_nodes; n++)
    std::memcpy(&positions[3 * n], atoms->x[atom[n]], 3 * sizeof(double));
}

// Computes the shifts of images: multiples of the cell vectors, unless atoms and ghosts are
// strained while the box stays as it is, as fix numdiff/virial and compute born/matrix do.
void PairMDCG::Nodes::update_shifts(const Atom *atoms, const Domain *domain)
{
  const double *h = domain->h;    // xx yy zz yz xz xy
  box = {h[0], 0.0, 0.0, h[5], h[1], 0.0, h[4], h[3], h[2]};
  std::copy_n(domain->periodicity, 3, periodic.begin());
  if (domain->dimension == 2) periodic[2] = 0;
  double extent = 0.0;
  for (const double length : box) extent += std::fabs(length);
  image_shifts.resize(3 * cells.size());
  for (std::size_t c = 0; c < cells.size(); c++) {
    const auto &[a, b, d] = cells[c];
    double *shift = &image_shifts[3 * c];
    shift[0] = h[0] * a;
    shift[1] = h[1] * b;
    shift[2] = h[2] * d;
    if (domain->triclinic) {
      shift[0] += h[5] * b + h[4] * d;
      shift[1] += h[3] * d;
    }
    if (c == 0) continue;
    const int ghost = cell_ghost[c];
    const double *from = atoms->x[ghost], *to = atoms->x[atom[node[ghost]]];
    bool strained = false;    // by more than rounding explains
    for (int k = 0; k < 3; k++) {
      const double size = std::fabs(from[k]) + std::fabs(to[k]) + extent;
      if (std::fabs(to[k] - from[k] - shift[k]) > ROUNDING * size) strained = true;
    }
    if (!strained) continue;
    for (int k = 0; k < 3; k++) shift[k] = to[k] - from[k];
    if (a * a + b * b + d * d != 1) continue;
    const int row = a ? 0 : b ? 1 : 2;
    for (int k = 0; k < 3; k++) box[3 * row + k] = (a + b + d) * shift[k];
  }
}

double PairMDCG::Nodes::bytes() const
{
  return mdcg_lammps::bytes_of(node, atom, copy_node, copy_image, positions) + ghosts.bytes();
}
