// SPDX-License-Identifier: GPL-2.0-only
#include "pair_mdcg.h"

#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "atom.h"
#include "citeme.h"
#include "comm.h"
#include "compute.h"
#include "device_choice.h"
#include "error.h"
#include "force.h"
#include "memory.h"
#include "modify.h"
#include "neighbor.h"
#include "pair_mdcg_impl.h"
#include "update.h"
#include "utils.h"

namespace LAMMPS_NS {
// LAMMPS installs no header for labels. This function writes them in the format of data files.
class LabelMap {
 public:
  void write_data(FILE *);
};
}    // namespace LAMMPS_NS

using namespace LAMMPS_NS;
using mdcg_lammps::bytes_of;
using mdcg_lammps::DeviceChoice;
using mdcg_lammps::Library;

static constexpr char CITATION[] =
    "pair_style mdcg: generated Clebsch-Gordan kernels for MACE, NequIP and SevenNet\n\n"
    "@Misc{mdcg,\n"
    " author = {{mdcg developers}},\n"
    " title  = {mdcg: fast MACE, NequIP and SevenNet molecular dynamics through generated\n"
    "           Clebsch-Gordan kernels},\n"
    " note   = {Cite the paper of the potential as well}\n"
    "}\n\n";

// kcal/mol per eV, the value that LAMMPS uses
static constexpr double EV_TO_KCAL = 23.060549;

PairMDCG::PairMDCG(LAMMPS *lmp) : Pair(lmp), impl(std::make_unique<Impl>())
{
  single_enable = 0;
  restartinfo = 1;
  one_coeff = 1;
  manybody_flag = 1;
  no_virial_fdotr_compute = 1;
  centroidstressflag = CENTROID_NOTAVAIL;
  comm_forward = 1;
  // The values that compute pair prints. Two are times of the last step in seconds, summed over
  // ranks: exchanges, and the whole evaluation. Three are standard deviations of a committee: the
  // energy per atom, the largest force and the mean force.
  nextra = 5;
  pvector = new double[nextra]{};
  std::string reason;
  try {
    impl->library = &Library::get();
  } catch (const std::exception &e) {
    reason = e.what();
  }
  all_or_none(FLERR, reason);
}

// Ends the run on all ranks if any rank has a reason. The message gives the first such rank's.
void PairMDCG::all_or_none(const std::string &file, int line, const std::string &reason)
{
  int mine = reason.empty() ? comm->nprocs : comm->me, first = 0;
  MPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, world);
  if (first == comm->nprocs) return;
  int failed = !reason.empty(), ranks = 0;
  MPI_Allreduce(&failed, &ranks, 1, MPI_INT, MPI_SUM, world);
  int length = static_cast<int>(reason.size());
  MPI_Bcast(&length, 1, MPI_INT, first, world);
  std::vector<char> text(length);
  if (comm->me == first) std::copy(reason.begin(), reason.end(), text.begin());
  MPI_Bcast(text.data(), length, MPI_CHAR, first, world);
  std::string where = "pair_style mdcg: ";
  if (ranks < comm->nprocs) where += "rank " + std::to_string(first) + ": ";
  error->all(file, line, where + std::string(text.data(), length));
}

// Ranks must run one version of the library and the same packages. Kernels need no comparison: the
// library refuses kernels that another version made, or that belong to another package.
void PairMDCG::compare_ranks()
{
  constexpr std::size_t LENGTH = 64;    // characters of a digest
  std::vector<std::string> names = {"libmdcg.so"}, values = {impl->library->version()};
  for (const Member &member : impl->members) {
    names.push_back(member.file);
    values.emplace_back(member.info.digest);
  }
  for (std::size_t which = 0; which < names.size(); which++) {
    values[which].resize(LENGTH);
    std::string all(LENGTH * comm->nprocs, '\0');
    MPI_Allgather(values[which].data(), LENGTH, MPI_CHAR, all.data(), LENGTH, MPI_CHAR, world);
    std::map<std::string, std::vector<int>> ranks;
    for (int rank = 0; rank < comm->nprocs; rank++)
      ranks[all.substr(LENGTH * rank, LENGTH).c_str()].push_back(rank);
    if (ranks.size() == 1) continue;
    std::string found;
    for (const auto &[value, of] : ranks) {
      found += (found.empty() ? "" : ", ") + value.substr(0, which == 0 ? LENGTH : 12) +
               " on rank" + (of.size() > 1 ? "s" : "");
      for (std::size_t k = 0; k < of.size() && k < 8; k++) found += " " + std::to_string(of[k]);
      if (of.size() > 8) found += " and " + std::to_string(of.size() - 8) + " more";
    }
    error->all(FLERR, "pair_style mdcg: " + names[which] + " is not the same on all ranks (" +
                          (which == 0 ? "version " : "digest ") + found +
                          (which == 0 ? "): install one version of mdcg on all nodes"
                                      : "): copy one file to all places where ranks look for it"));
  }
}

PairMDCG::~PairMDCG()
{
  if (copymode) return;
  delete[] pvector;
  if (allocated) {
    memory->destroy(setflag);
    memory->destroy(cutsq);
  }
}

static bool is_package(const std::string &name)
{
  static const std::string END = ".mdcg";
  return name.size() > END.size() && name.compare(name.size() - END.size(), END.size(), END) == 0;
}

static std::string known_names(const mdcg_info &info)
{
  std::string names;
  for (int t = 0; t < info.num_types; t++) names += std::string(t ? " " : "") + info.type_names[t];
  return names;
}

// Whether the name is auto, cpu, cuda, hip or, for example, cuda:12.
static bool is_device(const std::string &name)
{
  if (name == "auto" || name == "cpu") return true;
  const std::size_t end = std::min(name.find(':'), name.size());
  if (name.compare(0, end, "cuda") != 0 && name.compare(0, end, "hip") != 0) return false;
  return end == name.size() || (end + 1 < name.size() &&
                                name.find_first_not_of("0123456789", end + 1) == std::string::npos);
}

void PairMDCG::settings(int narg, char **arg)
{
  // a second pair_style command resets everything, so the package must be named again
  static_cast<Options &>(*impl) = {};
  impl->members.clear();
  impl->dispersion.reset();
  impl->set_up = false;
  impl->settings.clear();
  if (allocated) clear_types();
  for (int i = 0; i < narg; i += 2) {
    const std::string key = arg[i];
    if (const int words = read_input_keyword("pair_style mdcg", narg - i, arg + i)) {
      i += words - 2;
      continue;
    }
    if (key != "device" && key != "threads" && key != "precision" && key != "exchange" &&
        key != "kernels" && key != "committee" && key != "dispersion" && key != "damping" &&
        key != "dispersion_cutoff" && key != "memory" && key != "fixed_waves")
      error->all(FLERR, "pair_style mdcg: unknown keyword " + key +
                            ", expected: device auto|cpu|cuda|cuda:N|hip|hip:N, threads N, "
                            "precision fp32|fp64, exchange auto|host|peer, "
                            "committee mean|first, "
                            "kernels auto|generic|generated|FILE.mdcg-kernels, "
                            "dispersion FUNCTIONAL, damping bj|zero, dispersion_cutoff R, "
                            "memory SIZE, fixed_waves yes|no, charge Q, spin S, input NAME VALUE, "
                            "input external_field X Y Z");
    if (i + 1 == narg) error->all(FLERR, "pair_style mdcg: keyword " + key + " needs a value");
    impl->settings.insert(impl->settings.end(), arg + i, arg + i + 2);
    const std::string value = arg[i + 1];
    const auto require = [&](bool fits, const std::string &expected) {
      if (!fits)
        error->all(FLERR, "pair_style mdcg: " + key + " is " + value + ", expected " + expected);
    };
    if (key == "device") {
      require(is_device(value), "auto, cpu, cuda or hip (one for each rank), cuda:N or hip:N");
      impl->device = value;
    } else if (key == "exchange") {
      impl->exchange = value;
      require(value == "auto" || value == "host" || value == "peer",
              "auto, host, or peer (from device to device)");
    } else if (key == "committee") {
      impl->first_only = value == "first";
      require(value == "mean" || value == "first",
              "mean, or first (the results of the first package)");
    } else if (key == "fixed_waves") {
      impl->fixed_waves = value == "yes";
      require(value == "yes" || value == "no",
              "yes (the waves of the first cell), or no (those of each cell)");
    } else if (key == "dispersion_cutoff") {
      impl->dispersion_cutoff = utils::numeric(FLERR, arg[i + 1], false, lmp);
      require(impl->dispersion_cutoff > 0.0, "a length over 0");
    } else if (key == "threads") {
      impl->threads = utils::inumeric(FLERR, arg[i + 1], false, lmp);
      require(impl->threads > 0, "1 or more");
    } else {    // the library checks these
      (key == "dispersion" ? impl->functional
       : key == "damping"  ? impl->damping
       : key == "kernels"  ? impl->kernels
       : key == "memory"   ? impl->memory_size
                           : impl->precision) = value;
    }
  }
  if (impl->functional.empty() && (impl->damping != "bj" || impl->dispersion_cutoff > 0.0))
    error->all(FLERR, "pair_style mdcg: damping or dispersion_cutoff is given without dispersion, "
                      "expected dispersion FUNCTIONAL as well, such as pbe");
  if (impl->exchange == "peer" && (impl->device == "auto" || impl->device == "cpu"))
    error->all(FLERR, "pair_style mdcg: exchange is peer, and device is " + impl->device +
                          ", expected device cuda or hip, or exchange host");
}

void PairMDCG::allocate()
{
  allocated = 1;
  const int n = atom->ntypes + 1;
  memory->create(setflag, n, n, "pair:setflag");
  memory->create(cutsq, n, n, "pair:cutsq");
  clear_types();
}

// No pair of types has a potential until pair_coeff is accepted.
void PairMDCG::clear_types()
{
  for (int i = 0; i <= atom->ntypes; i++) std::fill_n(setflag[i], atom->ntypes + 1, 0);
}

void PairMDCG::coeff(int narg, char **arg)
{
  if (!allocated) allocate();
  const int ntypes = atom->ntypes;
  // LAMMPS as a library continues after an error, so there is no package until this one is accepted
  clear_types();
  const std::string usage = "pair_coeff * * FILE.mdcg <elements of types 1, 2, ...> (a package, or "
                            "several of a committee whose names end in .mdcg, then the package's "
                            "type name, or NULL, for each of the " +
                            std::to_string(ntypes) + " atom types, or the word labels)";
  if (narg < 3 || std::strcmp(arg[0], "*") != 0 || std::strcmp(arg[1], "*") != 0)
    error->all(FLERR, "pair_style mdcg: expected " + usage);
  std::vector<std::string> files = {arg[2]}, names;
  for (int i = 3; i < narg; i++)
    (names.empty() && is_package(arg[i]) ? files : names).push_back(arg[i]);
  const bool labels = names.size() == 1 && names[0] == "labels";
  if (!labels && static_cast<int>(names.size()) != ntypes)
    error->all(FLERR, "pair_style mdcg: got " + std::to_string(names.size()) +
                          " type names, expected " + usage);

  Impl &it = *impl;
  it.set_up = false;
  open_members(files);
  it.names = labels ? names_from_labels() : names;
  for (Member &member : it.members) match_names(member);
  if (it.dispersion) match_names(*it.dispersion);
  check_restored();
  it.restored = {};
  int count = 0;
  for (int i = 1; i <= ntypes; i++)
    for (int j = 1; j <= ntypes; j++) {
      setflag[i][j] = !it.is_null(i) && !it.is_null(j);
      count += setflag[i][j];
    }
  if (!count) error->all(FLERR, "pair_style mdcg: all atom types are NULL");
  it.last_nall = -1;
}

void PairMDCG::open_members(const std::vector<std::string> &files)
{
  Impl &it = *impl;
  it.members.clear();
  it.dispersion.reset();
  std::fill(pvector, pvector + nextra, 0.0);    // values of the previous packages
  mdcg_options options{};
  options.size = sizeof(options);
  std::string device = it.device == "auto" ? "cpu" : it.device;
  it.advice.clear();
  if (device != "cpu") {
    const DeviceChoice choice = DeviceChoice::make(world, *it.library, device);
    all_or_none(FLERR, choice.reason);
    device = choice.name;
    it.advice = choice.advice;
  }
  options.device = device.c_str();
  options.precision = it.precision.c_str();
  options.kernels = it.kernels.c_str();
  options.threads = it.threads ? it.threads : comm->nthreads;
  options.memory = it.memory_size.c_str();
  options.memory_models = static_cast<int>(files.size());
  bool has_sum = false;
  for (const std::string &file : files) {
    Member &member = it.members.emplace_back();
    member.file = file;
    open_member(member, options, nullptr);
    has_sum = has_sum || member.info.is_long_range;
  }
  if (it.fixed_waves && !has_sum) {    // an error, whose sentence the library knows
    options.fixed_waves = 1;
    Member refused;
    refused.file = files.front();
    open_member(refused, options, nullptr);
  }
  compare_ranks();
  it.r_max = it.members.front().info.r_max;
  for (const Member &member : it.members) {
    if (member.info.r_max != it.r_max)
      error->all(FLERR,
                 "pair_style mdcg: the cutoff of {} is {} and that of {} is {}, expected a "
                 "committee of packages with one cutoff",
                 files[0], it.r_max, member.file, member.info.r_max);
    if (!member.info.has_energy)
      error->all(FLERR,
                 "pair_style mdcg: {} gives dipoles and no energies, expected a package with "
                 "energies: convert another model",
                 member.file);
  }
  if (!it.functional.empty()) open_dispersion(options);
  choose_exchange();
}

void PairMDCG::open_dispersion(mdcg_options options)
{
  Impl &it = *impl;
  options.precision = nullptr;
  options.memory = nullptr;    // dispersion keeps no rows of edges
  options.fixed_waves = 0;
  options.dispersion = it.functional.c_str();
  options.damping = it.damping.c_str();
  options.dispersion_cutoff = it.dispersion_cutoff;
  it.dispersion = std::make_unique<Member>();
  it.dispersion->file = it.members.front().file;
  open_member(*it.dispersion, options, it.members.front().model.get());
}

// Decides whether rows of ghosts go from device to device. Collective.
void PairMDCG::choose_exchange()
{
  Impl &it = *impl;
  bool exchanges = it.dispersion && it.dispersion->info.num_exchanges > 0;
  for (const Member &member : it.members) exchanges |= member.info.num_exchanges > 0;
  it.device_to_device = false;
  it.through_host.clear();
  if (!exchanges || comm->nprocs == 1 || it.device == "auto" || it.device == "cpu") return;
  if (it.exchange == "host")
    it.through_host = "the keyword exchange is host";
  else if (it.exchange == "auto")
    it.through_host = why_not_peers();
  it.device_to_device = it.through_host.empty();
}

// Opens a network, of packages with a long-range sum with the keyword fixed_waves; or dispersion if
// `network`, the model whose package holds it, is not null. Collective.
void PairMDCG::open_member(Member &member, const mdcg_options &options, const mdcg_model *network)
{
  Impl &it = *impl;
  member.info.size = sizeof(member.info);
  // searches $LAMMPS_POTENTIALS too; if the file does not exist, the library reports that
  std::string path = utils::get_potential_file_path(member.file);
  if (path.empty()) path = member.file;
  mdcg_model *model = nullptr;
  std::string reason;
  bool opened = (network ? it.library->open_same(network, &options, &model)
                         : it.library->open(path.c_str(), &options, &model)) == MDCG_OK;
  member.model = {model, it.library->close};
  opened = opened && it.library->describe(model, &member.info) == MDCG_OK;
  if (opened && !network && it.fixed_waves && member.info.is_long_range) {
    mdcg_options with_waves = options;
    with_waves.fixed_waves = 1;
    opened = it.library->open_same(member.model.get(), &with_waves, &model) == MDCG_OK;
    if (opened) member.model = {model, it.library->close};
    opened = opened && it.library->describe(model, &member.info) == MDCG_OK;    // of this model
  }
  if (opened && !comm->me &&
      std::strstr(it.library->summary(model), "python -m mdcg kernels will make them")) {
    utils::logmesg(lmp,
                   "Making the kernels of {} with python -m mdcg kernels, because the cache has "
                   "none for this machine ...\n",
                   member.file);
    utils::flush_buffers(lmp);
  }
  it.library->set_notice(
      [](void *context, const char *sentence) {
        LAMMPS *const lmp = static_cast<LAMMPS *>(context);
        utils::logmesg(lmp, "pair_style mdcg: {}\n", sentence);
        utils::flush_buffers(lmp);
      },
      lmp);
  if (!opened || it.library->prepare(model) != MDCG_OK) reason = it.library->last_error();
  it.library->set_notice(nullptr, nullptr);
  all_or_none(FLERR, reason);
}

// Returns the labels of the atom types, which must be names of the package's types.
std::vector<std::string> PairMDCG::names_from_labels()
{
  if (!atom->labelmapflag)
    error->all(FLERR, "pair_style mdcg: pair_coeff has the word labels, and atom types have no "
                      "labels: use the labelmap command, or a data file with Atom Type Labels");
  char *section = nullptr;
  std::size_t length = 0;
  FILE *file = open_memstream(&section, &length);
  if (!file) throw std::bad_alloc();
  atom->lmap->write_data(file);
  std::fclose(file);
  const std::vector<std::string> lines = utils::split_lines(section);
  std::free(section);
  // lines such as "1 O" follow the title
  auto line = std::find(lines.begin(), lines.end(), "Atom Type Labels");
  if (line == lines.end())
    error->all(FLERR, "pair_style mdcg: pair_coeff has the word labels, and some atom types have "
                      "no labels: use the labelmap command");
  std::vector<std::string> names;
  while (++line != lines.end() && names.size() < static_cast<std::size_t>(atom->ntypes))
    names.push_back(line->substr(line->find(' ') + 1));
  return names;
}

void PairMDCG::match_names(Member &member)
{
  member.kind.assign(atom->ntypes + 1, -1);
  for (int i = 1; i <= atom->ntypes; i++) {
    const std::string &name = impl->names[i - 1];
    if (name == "NULL") continue;
    for (int t = 0; t < member.info.num_types; t++)
      if (name == member.info.type_names[t]) member.kind[i] = t;
    if (member.kind[i] < 0)
      error->all(FLERR, "pair_style mdcg: atom type " + std::to_string(i) + " is " + name +
                            ", which " + member.file +
                            " does not know; it knows: " + known_names(member.info));
  }
}

void PairMDCG::init_style()
{
  const std::string units = update->unit_style;
  if (units == "metal")
    impl->energy_unit = 1.0;
  else if (units == "real")
    impl->energy_unit = EV_TO_KCAL;
  else
    error->all(FLERR, "pair_style mdcg: units are " + units + ", expected metal or real");
  if (!force->newton_pair)
    error->all(FLERR, "pair_style mdcg: newton pair is off, expected on (command: newton on)");
  // A restart file was read, and no pair_coeff followed it.
  if (impl->members.empty() && !impl->restored.files.empty()) {
    std::vector<std::string> words = {"*", "*"};
    const Restored restored = impl->restored;
    words.insert(words.end(), restored.files.begin(), restored.files.end());
    words.insert(words.end(), restored.names.begin(), restored.names.end());
    std::vector<char *> arg;
    for (std::string &word : words) arg.push_back(word.data());
    coeff(static_cast<int>(arg.size()), arg.data());
  }
  impl->device_makes_list = can_do_without_list();
  if (!impl->memory_size.empty() && !impl->device_makes_list)
    error->all(FLERR, "pair_style mdcg: memory is " + impl->memory_size +
                          ", and LAMMPS makes the neighbour list, which has no domains: use "
                          "device cuda or hip, no hybrid style or excluded pairs, or no memory");
  // For a sub-style of hybrid, LAMMPS keeps the list of the last run, with its old skin, if the
  // request looks the same. A new instance number makes it a new request.
  if (neighbor->skin != impl->skin) instance_me = instance_total++;
  impl->skin = neighbor->skin;
  if (!impl->device_makes_list) neighbor->add_request(this, NeighConst::REQ_FULL);
  if (impl->dispersion) check_dispersion();
  if (has_long_range_sum() && strains_atoms_alone())
    error->all(FLERR, "pair_style mdcg: fix numdiff/virial and compute born/matrix move atoms and "
                      "not the box, over which a package sums long-range energies: use another "
                      "package");
  if (lmp->citeme) lmp->citeme->add(CITATION);
  for (const Compute *compute : modify->get_compute_by_style("^heat/flux$"))
    error->all(FLERR,
               "pair_style mdcg: compute {} heat/flux is not the heat flux of this potential: use "
               "compute mdcg/heat/flux",
               compute->id);
  if (!impl->members.empty()) check_masses();
  find_inputs();
  impl->last_nall = -1;
  impl->set_up = !impl->members.empty();
}

// "run pre no" skips the set-up, so cutoffs and lists would belong to the previous potential.
void PairMDCG::require_setup()
{
  if (impl->set_up) return;
  error->all(FLERR,
             "pair_style mdcg: pair_style, pair_coeff or an input of pair_modify was given after "
             "the last set-up, and 'run N pre no' skips the set-up: leave out pre no");
}

// Whether the device may make the neighbour list in place of LAMMPS: only if LAMMPS' list would
// contain all pairs within the cutoff. Hybrid styles leave some pairs out.
bool PairMDCG::can_do_without_list() const
{
  if (impl->device == "auto" || impl->device == "cpu") return false;
  return force->pair == this && !has_exclusions();
}

bool PairMDCG::strains_atoms_alone() const
{
  return !modify->get_fix_by_style("^numdiff/virial").empty() ||
         !modify->get_compute_by_style("^born/matrix").empty();
}

bool PairMDCG::has_long_range_sum() const
{
  for (const Member &member : impl->members)
    if (member.info.is_long_range) return true;
  return false;
}

// Dispersion has a longer cutoff than LAMMPS' list, so a rank needs ghosts up to that cutoff. A
// single rank computes images from the box instead, except with the two commands below, which
// strain atoms and ghosts but not the box.
void PairMDCG::check_dispersion()
{
  if (comm->nprocs == 1 && !strains_atoms_alone()) return;
  if (comm->mode != Comm::SINGLE)
    error->all(FLERR,
               "pair_style mdcg: dispersion needs one cutoff of ghosts, and comm_modify mode "
               "is multi, expected single");
  const double depth = impl->dispersion->info.r_max + neighbor->skin;
  comm->cutghostuser = std::max(comm->cutghostuser, depth);
}

// A compute with a tally callback sums what Pair::ev_tally passes, and this style never calls it.
void PairMDCG::add_tally_callback(Compute *compute)
{
  error->all(FLERR,
             "pair_style mdcg: compute {} {} needs energies and forces of pairs of atoms, which "
             "this potential does not have: use compute pe/atom or stress/atom, or with hybrid "
             "styles leave it out (pair_modify pair mdcg compute/tally no)",
             compute->id, compute->style);
}

double PairMDCG::init_one(int i, int j)
{
  if (!setflag[i][j]) return 0.0;    // NULL
  return impl->r_max;
}

// Prints once which kernels run, and on which ranks if they differ.
void PairMDCG::announce(Member &member)
{
  member.announced = true;
  constexpr int LENGTH = 1024;
  char mine[LENGTH] = {};
  std::strncpy(mine, impl->library->summary(member.model.get()), LENGTH - 1);
  std::vector<char> all(comm->me == 0 ? LENGTH * comm->nprocs : 0);
  MPI_Gather(mine, LENGTH, MPI_CHAR, all.data(), LENGTH, MPI_CHAR, 0, world);
  if (comm->me) return;
  std::string text = "pair_style mdcg: " + member.file + ", ";
  text += std::to_string(comm->nprocs) + (comm->nprocs == 1 ? " rank: " : " ranks: ") + mine + "\n";
  for (int rank = 1; rank < comm->nprocs; rank++)
    if (const char *other = &all[LENGTH * rank]; std::strcmp(mine, other) != 0)
      text += "  rank " + std::to_string(rank) + ": " + other + "\n";
  if (&member == &impl->members.front()) {
    if (impl->members.size() > 1)
      text += "  first of a committee of " + std::to_string(impl->members.size()) +
              " packages; energy and forces are " +
              (impl->first_only ? "those of the first\n" : "the mean\n");
    if (impl->device_to_device) text += "  rows of ghosts go from device to device\n";
    if (!impl->through_host.empty())
      text += "  rows of ghosts go through the host, because " + impl->through_host + "\n";
    if (impl->dispersion)
      text += "  dispersion " + impl->functional + ", damping " + impl->damping +
              fmt::format(", ghosts up to {:.4} Å\n", comm->get_comm_cutoff());
    if (!impl->advice.empty()) text += "  " + impl->advice + "\n";
  }
  utils::logmesg(lmp, text);
  if (text.find(" generic, because ") != std::string::npos)
    error->warning(FLERR, "pair_style mdcg: generic kernels run, which are slower; the line above "
                          "says why");
}

double PairMDCG::memory_usage()
{
  const Impl &it = *impl;
  double bytes = Pair::memory_usage();
  bytes += bytes_of(it.sender, it.receiver, it.image, it.energies, it.virials, it.owner,
                    it.forces_std, it.charges, it.descriptors);
  for (const Member &member : it.members) bytes += bytes_of(member.types, member.forces);
  bytes += it.nodes.bytes() + it.dispersion_nodes.bytes();
  return bytes;
}
