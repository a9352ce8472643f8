// SPDX-License-Identifier: GPL-2.0-only
// Numbers of the system that packages read besides its atoms, such as its charge.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "comm.h"
#include "error.h"
#include "pair_mdcg_impl.h"
#include "utils.h"

using namespace LAMMPS_NS;

// Other names of inputs, which the keywords charge and spin have.
static std::string other_name(const std::string &name)
{
  if (name == "charge") return "total_charge";
  if (name == "spin") return "total_spin";
  if (name == "total_charge") return "charge";
  return name == "total_spin" ? "spin" : "";
}

// Appends to a list unless it has the text.
static void add_to(std::string &list, const std::string &text)
{
  if ((", " + list + ", ").find(", " + text + ", ") != std::string::npos) return;
  list += (list.empty() ? "" : ", ") + text;
}

// Takes an input at arg[0], with the keyword `command` in messages. Returns how many words it has;
// 0: it is none.
int PairMDCG::read_input_keyword(const std::string &command, int narg, char **arg)
{
  const std::string key = arg[0];
  const bool any = key == "input";
  if (!any && key != "charge" && key != "spin") return 0;
  const bool field = any && narg > 1 && std::string(arg[1]) == "external_field";
  const int words = field ? 5 : any ? 3 : 2;
  if (narg < words)
    error->all(FLERR, command + ": keyword " + key + " needs " +
                          (field ? "three values behind external_field"
                           : any ? "the name of an input and a value"
                                 : "a value"));
  const std::string name = any ? arg[1] : key;
  for (int d = 0; d < 3 && field; d++)
    impl->inputs[name + "_" + "xyz"[d]] = utils::numeric(FLERR, arg[2 + d], false, lmp);
  if (field) return words;
  const std::string other = other_name(name);
  if (impl->inputs.count(other)) impl->inputs.erase(other);    // the last one counts
  impl->inputs[name] = utils::numeric(FLERR, arg[words - 1], false, lmp);
  return words;
}

// Changes inputs between runs. LAMMPS' own keywords go on to LAMMPS.
void PairMDCG::modify_params(int narg, char **arg)
{
  std::vector<char *> others;
  for (int i = 0; i < narg;) {
    const int words = read_input_keyword("pair_modify of pair_style mdcg", narg - i, arg + i);
    if (!words) others.push_back(arg[i]);
    if (words) impl->set_up = false;    // init_style checks them
    i += words ? words : 1;
  }
  if (narg == 0 || !others.empty())
    Pair::modify_params(static_cast<int>(others.size()), others.data());
}

// Finds the inputs of each package, and lets the package check them. Prints them when they change.
void PairMDCG::find_inputs()
{
  Impl &it = *impl;
  std::string known, line;
  std::map<std::string, bool> used;
  std::map<std::string, double> of_committee;    // by keyword
  for (Member &member : it.members) {
    member.inputs.assign(member.info.num_inputs, std::numeric_limits<double>::quiet_NaN());
    for (int i = 0; i < member.info.num_inputs; i++) {
      const std::string name = member.info.input_names[i];
      add_to(known, name);
      auto found = it.inputs.find(name);
      if (found == it.inputs.end()) found = it.inputs.find(other_name(name));
      const double default_value = member.info.input_defaults[i];
      if (found == it.inputs.end() && std::isnan(default_value))
        error->all(FLERR,
                   "pair_style mdcg: {} reads {} and has no default for it, expected a value: "
                   "write {} VALUE behind pair_style mdcg or pair_modify, or convert the model "
                   "with mdcg-patch --set {}=VALUE",
                   member.file, name, keyword_of(name), name);
      if (found != it.inputs.end()) used[found->first] = true;
      member.inputs[i] = found == it.inputs.end() ? default_value : found->second;
      const double first = of_committee.emplace(keyword_of(name), member.inputs[i]).first->second;
      if (first != member.inputs[i])
        error->all(FLERR,
                   "pair_style mdcg: packages of the committee have different defaults of {} ({:g} "
                   "and {:g}), expected one value: write {} VALUE behind pair_style mdcg",
                   name, first, member.inputs[i], keyword_of(name));
      add_to(line, fmt::format("{} = {:.15g}", name, member.inputs[i]));
    }
  }
  for (const auto &[name, value] : it.inputs)
    if (!used[name])
      error->all(FLERR, "pair_style mdcg: {} is given, which no package reads, expected {}", name,
                 known.empty() ? "none: remove it" : "one of: " + known);
  for (const auto &[keyword, value] : of_committee) {
    double most[2] = {value, -value}, all[2];
    MPI_Allreduce(most, all, 2, MPI_DOUBLE, MPI_MAX, world);
    if (all[0] != -all[1])
      error->all(FLERR,
                 "pair_style mdcg: {} is {:g} on one rank and {:g} on another, expected one value "
                 "on all ranks",
                 keyword, -all[1], all[0]);
  }
  for (Member &member : it.members) {
    if (member.inputs.empty()) continue;
    mdcg_system nothing{};
    nothing.size = sizeof(nothing);
    nothing.inputs = member.inputs.data();
    mdcg_results results{};
    results.size = sizeof(results);
    const bool fits =
        it.library->evaluate(member.model.get(), &nothing, nullptr, &results) == MDCG_OK;
    all_or_none(FLERR, fits ? "" : member.file + ": " + it.library->last_error());
  }
  if (line != it.logged_inputs && !line.empty() && !comm->me)
    utils::logmesg(lmp, "pair_style mdcg: " + line + "\n");
  it.logged_inputs = line;
}

// The keyword that gives an input.
std::string PairMDCG::keyword_of(const std::string &name)
{
  if (name == "total_charge" || name == "charge") return "charge";
  return name == "total_spin" || name == "spin" ? "spin" : "input " + name;
}
