// Emulates NVRTC with a host compiler. The "machine code" is a shared library that fake_cuda.cpp
// loads. The headers of kernels must be in the same folder.

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "translate.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kInvalidInput = 3, kInvalidProgram = 4, kInvalidOption = 5, kCompilation = 6;
constexpr int kInternal = 11;
constexpr int kArchitectures[] = {75, 80, 86, 89, 90, 100, 120};

struct Program {
    std::string source, cubin, log;
    bool hip = false;
};

std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::string own_folder() {
    Dl_info info;
    dladdr(reinterpret_cast<void*>(&own_folder), &info);
    const std::string path = info.dli_fname;
    return path.substr(0, path.rfind('/'));
}

std::string temporary() {
    const char* const named = std::getenv("TMPDIR");
    return named != nullptr ? named : "/tmp";
}

// Emulated tests spend most of their time here: -Og compiles a quarter faster than -O1, and kernels
// need nothing of the C++ library.
const std::string kCompiler =
    "g++ -std=c++17 -shared -fPIC -w -fno-strict-aliasing -fvisibility=hidden -Og -nodefaultlibs "
    "-fsanitize=alignment -fsanitize-undefined-trap-on-error";

struct Folder {
    std::string path;
    Folder() : path(temporary() + "/emulated-nvrtc-XXXXXX") {
        if (mkdtemp(path.data()) == nullptr) path.clear();
    }
    ~Folder() {
        for (const char* name : {"/kernel.cpp", "/kernel.so", "/log"})
            unlink((path + name).c_str());
        rmdir(path.c_str());
    }
};

}  // namespace

// Precompiles the header of all kernels, which takes a third of a small kernel's compilation.
EXPORT int emulated_nvrtc_precompile() {
    int status = 0;
    for (const char* name : {"/emulation.hpp'", "/emulation_hip.hpp'"}) {
        const std::string header = "'" + own_folder() + name;
        status +=
            std::system((kCompiler + " -x c++-header -o " + header + ".gch " + header).c_str());
    }
    return status;
}

EXPORT int nvrtcVersion(int* major, int* minor) {
    *major = 13;
    *minor = 0;
    return 0;
}
EXPORT int nvrtcGetNumSupportedArchs(int* count) {
    *count = int(std::size(kArchitectures));
    return 0;
}
EXPORT int nvrtcGetSupportedArchs(int* values) {
    std::copy(std::begin(kArchitectures), std::end(kArchitectures), values);
    return 0;
}
EXPORT const char* nvrtcGetErrorString(int status) {
    switch (status) {
        case 0:
            return "NVRTC_SUCCESS";
        case kInvalidInput:
            return "NVRTC_ERROR_INVALID_INPUT";
        case kInvalidProgram:
            return "NVRTC_ERROR_INVALID_PROGRAM";
        case kInvalidOption:
            return "NVRTC_ERROR_INVALID_OPTION";
        case kCompilation:
            return "NVRTC_ERROR_COMPILATION";
        default:
            return "NVRTC_ERROR_INTERNAL_ERROR";
    }
}

EXPORT int nvrtcCreateProgram(Program** program, const char* source, const char*, int headers,
                              const char* const*, const char* const*) {
    if (source == nullptr || headers != 0) return kInvalidInput;
    *program = new Program{source, {}, {}, false};
    return 0;
}
EXPORT int nvrtcDestroyProgram(Program** program) {
    delete *program;
    *program = nullptr;
    return 0;
}

EXPORT int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
    for (int i = 0; i < count; ++i)
        if (options[i][0] != '-') return kInvalidOption;
    const Folder folder;
    if (folder.path.empty()) {
        program->log = "no folder can be made for temporary files";
        return kInternal;
    }
    const std::string base = folder.path + "/kernel";
    std::ofstream(base + ".cpp") << translate(program->source, program->hip);
    const std::string command = kCompiler + " -include '" + own_folder() +
                                (program->hip ? "/emulation_hip.hpp' -o " : "/emulation.hpp' -o ") +
                                base + ".so " + base + ".cpp -lm -lc -lgcc > " + folder.path +
                                "/log 2>&1";
    const int status = std::system(command.c_str());
    program->log = read(folder.path + "/log");
    if (status != 0) return kCompilation;
    program->cubin = read(base + ".so");
    return program->cubin.empty() ? kInternal : 0;
}

EXPORT int nvrtcGetCUBINSize(Program* program, std::size_t* size) {
    *size = program->cubin.size();
    return *size != 0 ? 0 : kInvalidProgram;
}
EXPORT int nvrtcGetCUBIN(Program* program, char* cubin) {
    std::memcpy(cubin, program->cubin.data(), program->cubin.size());
    return 0;
}
EXPORT int nvrtcGetProgramLogSize(Program* program, std::size_t* size) {
    *size = program->log.size() + 1;
    return 0;
}
EXPORT int nvrtcGetProgramLog(Program* program, char* log) {
    std::memcpy(log, program->log.c_str(), program->log.size() + 1);
    return 0;
}

// ---- hiprtc: the same by other names -----------------------------------------------------------

EXPORT int hiprtcVersion(int* major, int* minor) {
    *major = 6;
    *minor = 2;
    return 0;
}
EXPORT const char* hiprtcGetErrorString(int status) { return nvrtcGetErrorString(status); }
EXPORT int hiprtcCreateProgram(Program** program, const char* source, const char* name, int headers,
                               const char* const* texts, const char* const* names) {
    const int status = nvrtcCreateProgram(program, source, name, headers, texts, names);
    if (status == 0) (*program)->hip = true;
    return status;
}
EXPORT int hiprtcDestroyProgram(Program** program) { return nvrtcDestroyProgram(program); }
EXPORT int hiprtcCompileProgram(Program* program, int count, const char* const* options) {
    return nvrtcCompileProgram(program, count, options);
}
EXPORT int hiprtcGetCodeSize(Program* program, std::size_t* size) {
    return nvrtcGetCUBINSize(program, size);
}
EXPORT int hiprtcGetCode(Program* program, char* code) { return nvrtcGetCUBIN(program, code); }
EXPORT int hiprtcGetProgramLogSize(Program* program, std::size_t* size) {
    return nvrtcGetProgramLogSize(program, size);
}
EXPORT int hiprtcGetProgramLog(Program* program, char* log) {
    return nvrtcGetProgramLog(program, log);
}
