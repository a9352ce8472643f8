// SPDX-License-Identifier: GPL-2.0-only
// Compares the masses of atom types with the elements that pair_coeff names for them.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "atom.h"
#include "comm.h"
#include "error.h"
#include "pair_mdcg_impl.h"

using namespace LAMMPS_NS;

// Standard atomic weights (IUPAC 2016) of the elements, beginning with hydrogen, or the mass of a
// long-lived isotope.
static constexpr double WEIGHTS[] = {
    1.008,  4.0026, 6.94,   9.0122, 10.81,  12.011, 14.007, 15.999, 18.998, 20.18,  22.99,  24.305,
    26.982, 28.085, 30.974, 32.06,  35.45,  39.948, 39.098, 40.078, 44.956, 47.867, 50.941, 51.996,
    54.938, 55.845, 58.933, 58.693, 63.546, 65.38,  69.723, 72.63,  74.922, 78.971, 79.904, 83.798,
    85.468, 87.62,  88.906, 91.224, 92.906, 95.95,  97.907, 101.07, 102.91, 106.42, 107.87, 112.41,
    114.82, 118.71, 121.76, 127.6,  126.9,  131.29, 132.91, 137.33, 138.91, 140.12, 140.91, 144.24,
    144.91, 150.36, 151.96, 157.25, 158.93, 162.5,  164.93, 167.26, 168.93, 173.05, 174.97, 178.49,
    180.95, 183.84, 186.21, 190.23, 192.22, 195.08, 196.97, 200.59, 204.38, 207.2,  208.98, 208.98,
    209.99, 222.02, 223.02, 226.03, 227.03, 232.04, 231.04, 238.03, 237.05, 244.06, 243.06, 247.07,
    247.07, 251.08, 252.08, 257.1,  258.1,  259.1,  262.11, 267.12, 268.13, 271.13, 270.13, 269.13,
    278.16, 281.17, 281.17, 285.18, 286.18, 289.19, 289.19, 293.2,  293.21, 294.21,
};
static constexpr int NUM_ELEMENTS = sizeof(WEIGHTS) / sizeof(double);

static double weight(int number)
{
  return WEIGHTS[number - 1];
}

static bool fits(double mass, int number)
{
  return std::abs(mass - weight(number)) <= std::max(0.5, 0.02 * weight(number));
}

// Also accepts the mass of deuterium for hydrogen.
static bool may_be(double mass, int number)
{
  return fits(mass, number) || (number == 1 && mass < 2.5);
}

// Refuses elements that fit the masses of all types in another order, and warns of other masses,
// such as those of isotopes. Masses of single atoms (rmass) say nothing about types.
void PairMDCG::check_masses()
{
  Impl &it = *impl;
  const Member &member = it.members.front();
  if (!member.info.atomic_numbers || !atom->mass || atom->rmass) return;
  const double *mass = atom->mass;
  std::vector<int> number(atom->ntypes + 1), types;
  std::string wrong;
  bool given_fits = true;
  for (int type = 1; type <= atom->ntypes; type++) {
    if (it.is_null(type) || !atom->mass_setflag[type]) continue;
    number[type] = member.info.atomic_numbers[member.kind[type]];
    if (number[type] < 1 || number[type] > NUM_ELEMENTS) continue;
    types.push_back(type);
    given_fits = given_fits && may_be(mass[type], number[type]);
    if (!fits(mass[type], number[type]))
      wrong +=
          fmt::format("{}atom type {} is {} ({} u) and has mass {:.8}", wrong.empty() ? "" : ", ",
                      type, it.names[type - 1], weight(number[type]), mass[type]);
  }
  if (wrong.empty()) return;
  // If any order of the elements fits, then the one sorted by mass fits.
  std::vector<int> elements = types;
  std::sort(types.begin(), types.end(), [&](int a, int b) { return mass[a] < mass[b]; });
  std::sort(elements.begin(), elements.end(),
            [&](int a, int b) { return weight(number[a]) < weight(number[b]); });
  bool other_fits = true;
  std::vector<std::string> order = it.names;
  for (std::size_t k = 0; k < types.size(); k++) {
    other_fits = other_fits && may_be(mass[types[k]], number[elements[k]]);
    order[types[k] - 1] = it.names[elements[k] - 1];
  }
  if (other_fits && !given_fits) {
    std::string names;
    for (const std::string &name : order) names += " " + name;
    error->all(FLERR, "pair_style mdcg: " + wrong + ", but in the order" + names +
                          " the elements would fit the masses: name them in pair_coeff in the "
                          "order of the atom types");
  }
  if (comm->me == 0 && wrong != it.warned_masses)
    error->warning(FLERR,
                   "pair_style mdcg: " + wrong + ": are these the elements of the atom types?");
  it.warned_masses = wrong;
}
