// SPDX-License-Identifier: GPL-2.0-only
#include "mdcg_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <vector>

namespace mdcg_lammps {

namespace {

std::string folder_of_this_plugin()
{
  Dl_info info;
  if (!dladdr(reinterpret_cast<void *>(&folder_of_this_plugin), &info) || !info.dli_fname)
    return ".";
  const std::string file = info.dli_fname;
  const auto slash = file.rfind('/');
  return slash == std::string::npos ? "." : file.substr(0, slash);
}

std::vector<std::string> candidates()
{
  std::vector<std::string> found;
  if (const char *named = std::getenv("MDCG_LIBRARY")) {
    if (*named) return {named};
  }
#ifdef MDCG_LIBRARY_PATH
  found.push_back(MDCG_LIBRARY_PATH);
#endif
  found.push_back(folder_of_this_plugin() + "/libmdcg.so");
  found.push_back("libmdcg.so");
  return found;
}

template <typename Function>
void load(void *handle, const char *name, Function &target, const std::string &path)
{
  target = reinterpret_cast<Function>(dlsym(handle, name));
  if (!target)
    throw std::runtime_error(path + " has no function " + name +
                             ": it is another version of mdcg than this plugin, which must be "
                             "compiled again (python -m mdcg lammps)");
}

Library open_library()
{
  std::string tried;
  for (const std::string &path : candidates()) {
    // DEEPBIND: symbols of LAMMPS' own BLAS and JSON must not replace those of the library
    void *handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (!handle) {
      const char *why = dlerror();
      tried += std::string(tried.empty() ? "" : "; ") + (why ? why : path.c_str());
      continue;
    }
    auto abi = reinterpret_cast<decltype(&mdcg_abi_version)>(dlsym(handle, "mdcg_abi_version"));
    if (!abi)
      throw std::runtime_error(path +
                               " is not mdcg's library, it has no function mdcg_abi_version: name "
                               "another file in MDCG_LIBRARY, or unset it");
    if (abi() != MDCG_ABI_VERSION)
      throw std::runtime_error(path + " has interface version " + std::to_string(abi()) +
                               ", this plugin was compiled for " +
                               std::to_string(MDCG_ABI_VERSION) +
                               ": compile it again (python -m mdcg lammps)");
    Library library;
#define MDCG_LOAD(name) load(handle, "mdcg_" #name, library.name, path);
    MDCG_FUNCTIONS(MDCG_LOAD)
#undef MDCG_LOAD
    return library;
  }
  throw std::runtime_error("libmdcg.so cannot be opened (" + tried +
                           "): install mdcg, or set MDCG_LIBRARY to the file");
}

}    // namespace

const Library &Library::get()
{
  static const Library library = open_library();
  return library;
}

}    // namespace mdcg_lammps
