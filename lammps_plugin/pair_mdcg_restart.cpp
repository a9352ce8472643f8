// SPDX-License-Identifier: GPL-2.0-only
// Restart files: the settings, the packages with their digests, and the names of the atom types.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "atom.h"
#include "comm.h"
#include "error.h"
#include "pair_mdcg_impl.h"
#include "utils.h"

using namespace LAMMPS_NS;

// Replaces a file of kernels in the settings by "generated", because only an input script may name
// code to run. Returns the name of the file, or an empty string if there was none.
static std::string remove_kernel_file(std::vector<std::string> &settings)
{
  std::string file;
  for (std::size_t i = 1; i < settings.size(); i += settings[i - 1] == "input" ? 3 : 2) {
    std::string &value = settings[i];
    if (settings[i - 1] != "kernels" || value == "auto" || value == "generic") continue;
    if (value != "generated") file = value;
    value = "generated";
  }
  return file;
}

void PairMDCG::write_restart(FILE *fp)
{
  write_restart_settings(fp);
}

// Writes lists of lines. Each list follows the number of its lines.
void PairMDCG::write_restart_settings(FILE *fp)
{
  const Impl &it = *impl;
  Restored now = it.restored;    // what the last restart file named, if no package was opened since
  if (!it.members.empty()) now = {{}, {}, it.names};
  for (const Member &member : it.members) {
    now.files.push_back(member.file);
    now.digests.push_back(member.info.digest ? member.info.digest : "");
  }
  std::string text;
  std::vector<std::string> given = it.settings;
  remove_kernel_file(given);
  for (const auto &[name, value] : it.inputs)
    for (const std::string &word : {std::string("input"), name, fmt::format("{:.17g}", value)})
      given.push_back(word);
  for (const auto *lines : {&given, &now.files, &now.digests, &now.names}) {
    text += std::to_string(lines->size()) + "\n";
    for (const std::string &line : *lines) text += line + "\n";
  }
  const int length = static_cast<int>(text.size());
  fwrite(&length, sizeof(length), 1, fp);
  fwrite(text.data(), 1, length, fp);
}

void PairMDCG::read_restart(FILE *fp)
{
  read_restart_settings(fp);
  const std::vector<std::string> &names = impl->restored.names;
  allocate();
  const int named = std::min(atom->ntypes, static_cast<int>(names.size()));
  for (int i = 1; i <= named; i++)
    for (int j = 1; j <= named; j++)
      setflag[i][j] = names[i - 1] != "NULL" && names[j - 1] != "NULL";
}

void PairMDCG::read_restart_settings(FILE *fp)
{
  int length = 0;
  if (comm->me == 0) utils::sfread(FLERR, &length, sizeof(length), 1, fp, nullptr, error);
  MPI_Bcast(&length, 1, MPI_INT, 0, world);
  if (length < 0 || length > 1 << 24)
    error->all(FLERR, "pair_style mdcg: the restart file is damaged: write it again");
  std::string text(length, '\0');
  if (comm->me == 0) utils::sfread(FLERR, text.data(), 1, length, fp, nullptr, error);
  MPI_Bcast(text.data(), length, MPI_CHAR, 0, world);
  std::size_t at = 0;
  bool cut = false;
  const auto next_line = [&] {
    const std::size_t end = text.find('\n', at);
    cut = cut || end == std::string::npos;
    const std::string line = cut ? "" : text.substr(at, end - at);
    at = end + 1;
    return line;
  };
  std::vector<std::string> given;
  for (auto *lines :
       {&given, &impl->restored.files, &impl->restored.digests, &impl->restored.names}) {
    lines->clear();
    for (auto left = std::strtoul(next_line().c_str(), nullptr, 10); left > 0 && !cut; left--)
      lines->emplace_back(impl->library->printable(next_line().c_str()));
  }
  if (cut || impl->restored.files.size() != impl->restored.digests.size())
    error->all(FLERR, "pair_style mdcg: the restart file is damaged: write it again");
  const std::string file = remove_kernel_file(given);
  if (!file.empty() && comm->me == 0)
    error->warning(FLERR, "pair_style mdcg: the restart file names the kernels " + file +
                              ", which are code and run only where the input names them "
                              "(pair_style mdcg kernels FILE, then pair_coeff): kernels of the "
                              "cache are used");
  std::vector<char *> arg;
  for (std::string &word : given) arg.push_back(word.data());
  settings(static_cast<int>(arg.size()), arg.data());
}

// Refuses packages and types other than those that the restart file names.
void PairMDCG::check_restored()
{
  const Impl &it = *impl;
  const Restored &was = it.restored;
  if (was.files.empty()) return;
  std::string reason;
  for (std::size_t m = 0; m < it.members.size() && m < was.files.size(); m++) {
    const std::string digest = it.members[m].info.digest ? it.members[m].info.digest : "";
    if (digest != was.digests[m] && reason.empty())
      reason = it.members[m].file + " (digest " + digest.substr(0, 12) +
               ") is not the package of the restart file, which names " + was.files[m] +
               " (digest " + was.digests[m].substr(0, 12) + ")";
  }
  if (it.members.size() != was.files.size())
    reason = "pair_coeff names " + std::to_string(it.members.size()) +
             " packages, and the restart file " + std::to_string(was.files.size());
  for (std::size_t i = 0; i < it.names.size() && i < was.names.size(); i++)
    if (it.names[i] != was.names[i] && reason.empty())
      reason = "atom type " + std::to_string(i + 1) + " is " + it.names[i] +
               ", and the restart file was written with " + was.names[i];
  if (!reason.empty())
    reason += ": name the same as there, or write pair_style none before pair_style mdcg to "
              "continue with another potential";
  all_or_none(FLERR, reason);
}
