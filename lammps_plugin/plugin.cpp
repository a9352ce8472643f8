// SPDX-License-Identifier: GPL-2.0-only
// The function that LAMMPS calls when it loads the plugin. It checks that the plugin was compiled
// for this LAMMPS, and registers the styles. LAMMPS itself checks nothing: a plugin for another
// version would run and give wrong numbers.
#include <dlfcn.h>
#include <mpi.h>

#include <cstdio>
#include <cstring>
#include <new>
#include <string>

#include "compute_mdcg_descriptors.h"
#include "compute_mdcg_heat_flux.h"
#include "lammps.h"
#include "lmptype.h"
#include "pair_mdcg.h"

#ifndef MDCG_LAMMPS_VERSION
#error "MDCG_LAMMPS_VERSION must be the version of the headers, such as 20250722"
#endif

using namespace LAMMPS_NS;

namespace {

// Declarations of LAMMPS' lammpsplugin.h, which installations lack.
extern "C" {
typedef void *(lammpsplugin_factory1)(LAMMPS *);
typedef void *(lammpsplugin_factory2)(LAMMPS *, int, char **);
typedef struct {
  const char *version, *style, *name, *info, *author;
  union {
    lammpsplugin_factory1 *v1;
    lammpsplugin_factory2 *v2;
  } creator;
  void *handle;
} lammpsplugin_t;
typedef void (*lammpsplugin_regfunc)(lammpsplugin_t *, void *);
}

void *make_pair(LAMMPS *lmp)
{
  return static_cast<Pair *>(new PairMDCG(lmp));
}

void *make_descriptors(LAMMPS *lmp, int narg, char **arg)
{
  return static_cast<Compute *>(new ComputeMDCGDescriptors(lmp, narg, arg));
}

void *make_heat_flux(LAMMPS *lmp, int narg, char **arg)
{
  return static_cast<Compute *>(new ComputeMDCGHeatFlux(lmp, narg, arg));
}

template <typename Function> Function host(const char *name)
{
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

std::string mpi_of(const std::string &library)
{
  if (library.find("Open MPI") != std::string::npos) return "Open MPI";
  if (library.find("MPICH") != std::string::npos) return "MPICH";
  if (library.find("Intel") != std::string::npos) return "MPICH";    // same ABI
  if (library.find("STUBS") != std::string::npos) return "no MPI";
  return "MPICH";
}

std::string compiled_mpi()
{
#if defined(OPEN_MPI)
  return "Open MPI";
#elif defined(MPI_STUBS)
  return "no MPI";
#else
  return "MPICH";
#endif
}

// A pair style that reads the members of Pair where this plugin's headers place them.
class Probe : public Pair {
 public:
  explicit Probe(LAMMPS *lmp) : Pair(lmp) {}
  void compute(int, int) override {}
  void settings(int, char **) override {}
  void coeff(int, char **) override {}
  bool as_expected() const
  {
    return copymode == 0 && allocated == 0 && comm_forward == 0 && comm_reverse == 0 &&
           single_enable == 1 && restartinfo == 1 && one_coeff == 0 && manybody_flag == 0 &&
           no_virial_fdotr_compute == 0 && eatom == nullptr && vatom == nullptr &&
           setflag == nullptr && cutsq == nullptr && elements == nullptr && map == nullptr &&
           centroidstressflag == 0 && maxeatom == 0 && maxvatom == 0;
  }
};

// Calls LAMMPS' constructor of Pair on memory of known content. The constructor must write only
// within the size that Pair has in these headers, and set the members of these headers to their
// defaults.
bool layout_fits(LAMMPS *lmp)
{
  constexpr std::size_t SPARE = 512;
  alignas(64) static unsigned char memory[sizeof(Probe) + SPARE];
  std::memset(memory, 0xA5, sizeof(memory));
  Probe *probe = new (memory) Probe(lmp);
  bool fits = probe->as_expected();
  for (std::size_t i = sizeof(Probe); i < sizeof(memory); i++) fits = fits && memory[i] == 0xA5;
  // not destroyed if the layout is wrong, because its pointers would be invalid
  if (fits) probe->~Probe();
  return fits;
}

std::string why_not(LAMMPS *lmp)
{
  auto version = host<int (*)(void *)>("lammps_version");
  auto setting = host<int (*)(void *, const char *)>("lammps_extract_setting");
  if (!version || !setting)
    return "this LAMMPS does not export its C interface: use one built as a shared library";
  const std::string again = ": compile the plugin for this LAMMPS (python -m mdcg lammps --help)";
  const int running = version(lmp);
  if (running != MDCG_LAMMPS_VERSION)
    return "it was compiled for LAMMPS " + std::to_string(MDCG_LAMMPS_VERSION) + ", this is " +
           std::to_string(running) + again;
  const struct {
    const char *name;
    int bytes;
  } sizes[] = {
      {"tagint", sizeof(tagint)}, {"bigint", sizeof(bigint)}, {"imageint", sizeof(imageint)}};
  for (const auto &size : sizes)
    if (setting(lmp, size.name) != size.bytes)
      return std::string("it was compiled with ") + std::to_string(8 * size.bytes) + "-bit " +
             size.name + ", this LAMMPS has " + std::to_string(8 * setting(lmp, size.name)) +
             "-bit ones" + again;
  if (auto mpi = host<int (*)(char *, int *)>("MPI_Get_library_version")) {
    char text[8192] = {};
    int length = 0;
    mpi(text, &length);
    if (mpi_of(text) != compiled_mpi())
      return "it was compiled with " + compiled_mpi() + ", this LAMMPS runs on " + mpi_of(text) +
             again;
  }
  if (!layout_fits(lmp))
    return "its class Pair has another layout than this LAMMPS " + std::to_string(running) +
           " (another update of the same version)" + again;
  return "";
}

}    // namespace

extern "C" __attribute__((visibility("default"))) void lammpsplugin_init(void *lmp, void *handle,
                                                                         void *regfunc)
{
  auto *lammps = static_cast<LAMMPS *>(lmp);
  const std::string reason = why_not(lammps);
  if (!reason.empty()) {
    const std::string text = "pair_style mdcg is refused: " + reason;
    // uses LAMMPS' C interface only, because the layout of its classes is not checked yet
    if (auto fail = host<void (*)(void *, int, const char *)>("lammps_error"))
      fail(lmp, 0 /* warning */, text.c_str());
    else
      std::fprintf(stderr, "WARNING: %s\n", text.c_str());
    return;
  }
  lammpsplugin_t plugin{};
  plugin.version = lammps->version;
  plugin.style = "pair";
  plugin.name = "mdcg";
  plugin.info = "MACE, NequIP, SevenNet and Nequix potentials through generated kernels (mdcg)";
  plugin.author = "mdcg developers";
  plugin.creator.v1 = &make_pair;
  plugin.handle = handle;
  reinterpret_cast<lammpsplugin_regfunc>(regfunc)(&plugin, lmp);
  plugin.style = "compute";
  plugin.name = "mdcg/heat/flux";
  plugin.info = "heat flux of potentials of pair_style mdcg";
  plugin.creator.v2 = &make_heat_flux;
  reinterpret_cast<lammpsplugin_regfunc>(regfunc)(&plugin, lmp);
  plugin.name = "mdcg/descriptors";
  plugin.info = "descriptors of atoms of potentials of pair_style mdcg";
  plugin.creator.v2 = &make_descriptors;
  reinterpret_cast<lammpsplugin_regfunc>(regfunc)(&plugin, lmp);
}
