// Parts of the engine that no public interface reaches, bound for tests alone.
#include <pybind11/pybind11.h>

void register_domains(pybind11::module_& m);
void register_edges(pybind11::module_& m);
void register_cuda_lists(pybind11::module_& m);

PYBIND11_MODULE(mdcg_internals, m) {
    register_domains(m);
    register_edges(m);
    register_cuda_lists(m);
}
