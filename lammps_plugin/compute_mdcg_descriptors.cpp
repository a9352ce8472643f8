// SPDX-License-Identifier: GPL-2.0-only
#include "compute_mdcg_descriptors.h"

#include <algorithm>

#include "atom.h"
#include "error.h"
#include "force.h"
#include "memory.h"
#include "pair_mdcg_impl.h"
#include "update.h"

using namespace LAMMPS_NS;

ComputeMDCGDescriptors::ComputeMDCGDescriptors(LAMMPS *lmp, int narg, char **arg)
    : Compute(lmp, narg, arg)
{
  if (narg != 3)
    error->all(FLERR, "compute mdcg/descriptors: got {} arguments, expected none", narg - 3);
  pair = find_pair();
  peratom_flag = 1;
  size_peratom_cols = columns();    // dumps and other commands read it before a run
}

ComputeMDCGDescriptors::~ComputeMDCGDescriptors()
{
  memory->destroy(array_atom);
}

PairMDCG *ComputeMDCGDescriptors::find_pair() const
{
  auto *found = dynamic_cast<PairMDCG *>(force->pair_match("mdcg", 1));
  if (!found)
    error->all(FLERR, "compute mdcg/descriptors: the pair style is {}, expected mdcg once",
               force->pair_style ? force->pair_style : "none");
  if (found->impl->members.empty())
    error->all(FLERR, "compute mdcg/descriptors: there is no package yet, whose descriptors it "
                      "would return: write the compute after pair_coeff");
  return found;
}

int ComputeMDCGDescriptors::columns() const
{
  const int found = pair->num_descriptors();
  if (found < 1)
    error->all(FLERR,
               "compute mdcg/descriptors: {} has no descriptors, expected a package that "
               "mdcg-patch made from a model of energies",
               pair->impl->members.front().file);
  return found;
}

void ComputeMDCGDescriptors::init()
{
  pair = find_pair();
  const int found = columns();
  if (found != size_peratom_cols)
    error->all(FLERR,
               "compute mdcg/descriptors: {} has {} descriptors, and the package of an earlier "
               "pair_coeff had {}: write the compute again after pair_coeff",
               pair->impl->members.front().file, found, size_peratom_cols);
}

void ComputeMDCGDescriptors::compute_peratom()
{
  pair = find_pair();    // pair_style may have made another one since the last set-up
  pair->require_setup();
  invoked_peratom = update->ntimestep;
  if (atom->nmax > nmax) {
    memory->destroy(array_atom);
    nmax = atom->nmax;
    memory->create(array_atom, nmax, size_peratom_cols, "mdcg/descriptors:array_atom");
  }
  for (int i = 0; i < atom->nlocal; i++) std::fill_n(array_atom[i], size_peratom_cols, 0.0);
  pair->find_descriptors(groupbit, array_atom);
}

double ComputeMDCGDescriptors::memory_usage()
{
  return static_cast<double>(nmax) * size_peratom_cols * sizeof(double);
}
