#include "engine/ops/conv/conv_problem.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "core/integers.hpp"
#include "core/wigner_3j.hpp"
#include "engine/op.hpp"
#include "engine/package/limits.hpp"

namespace mdcg {

namespace {

using json = nlohmann::json;
using Degrees = std::array<int, 3>;

// Reads triples of degrees.
std::set<Degrees> read_degrees(const Fields& problem, const char* key) {
    const json& list = problem.json(key);
    std::set<Degrees> found;
    const auto is_degree = [](const json& l) {
        return l.is_number_unsigned() && l.get<std::uint64_t>() <= limits::MAX_DEGREE;
    };
    for (const json& triple : list) {
        if (!triple.is_array() || triple.size() != 3 ||
            !std::all_of(triple.begin(), triple.end(), is_degree))
            problem.fail(key, list.dump().substr(0, 60), "a list of degrees [l1, l2, l3]");
        found.insert(triple.get<Degrees>());
    }
    return found;
}

// The 3j symbols of a model: those of wigner_3j, some with the opposite sign or rounded to float32.
class Symbols {
public:
    Symbols(std::set<Degrees> flipped, std::set<Degrees> rounded)
        : flipped_(std::move(flipped)), rounded_(std::move(rounded)) {}

    const std::vector<double>& of(const Degrees& l) {
        const auto [place, is_new] = known_.try_emplace(l);
        if (!is_new) return place->second;
        place->second = wigner_3j(l[0], l[1], l[2]);
        for (double& entry : place->second) {
            if (flipped_.count(l) != 0) entry = -entry;
            if (rounded_.count(l) != 0) entry = static_cast<float>(entry);
        }
        return place->second;
    }

private:
    std::set<Degrees> flipped_, rounded_;
    std::map<Degrees, std::vector<double>> known_;
};

}  // namespace

ConvDescription ConvDescription::read(const Fields& fields, int outputs, int align) {
    const Fields problem = fields.object_in_text("problem");
    ConvDescription found;
    found.x = read_rows(problem, "irreps_in1", align);
    found.out = read_rows(problem, "irreps_out", align);
    const Rows harmonics = read_rows(problem, "irreps_in2", 1);
    for (const Block& block : harmonics.blocks) {
        if (block.mul != 1 || block.l != found.l_max + (&block != harmonics.blocks.data()))
            problem.fail("irreps_in2", problem.text("irreps_in2"), "one of each l from 0 on");
        found.l_max = block.l;
    }
    const std::set<Degrees> flipped = read_degrees(problem, "flipped"),
                            rounded = read_degrees(problem, "rounded");
    json written = {{"format", 1},
                    {"irreps_in1", irreps_text(found.x)},
                    {"irreps_in2", irreps_text(harmonics)},
                    {"irreps_out", irreps_text(found.out)},
                    {"layout", "ir_mul"},
                    {"dtype", problem.text("dtype")},
                    {"shared_weights", false},
                    {"flipped", flipped},
                    {"rounded", rounded},
                    {"paths", json::array()}};

    const json& paths = problem.json("paths");
    if (!paths.is_array() || paths.empty() || paths.size() > limits::MAX_PATHS)
        problem.fail("paths", paths.dump().substr(0, 40),
                     "a list of 1 to " + std::to_string(limits::MAX_PATHS) + " paths");
    std::int64_t numel = 0;
    std::int32_t offset = 0;  // at most the outputs, padded for every path
    Symbols symbols(flipped, rounded);
    for (const json& path : paths) {
        const auto index = [&](std::size_t at, const std::vector<Block>& blocks) -> const Block& {
            if (!path.is_array() || path.size() != 6 || !path[at].is_number_unsigned() ||
                path[at].get<std::uint64_t>() >= blocks.size() || !path[5].is_string())
                problem.fail("paths", path.dump().substr(0, 60),
                             "[block of x, of harmonics, of out, \"uvu\", 1, path weight]");
            return blocks[path[at].get<std::size_t>()];
        };
        const Block& x = index(0, found.x.blocks);
        const Block& y = index(1, harmonics.blocks);
        const Block& out = index(2, found.out.blocks);
        if (path[3] != "uvu" || path[4] != 1 || x.mul != out.mul)
            problem.fail("paths", path.dump().substr(0, 60),
                         "uvu with weights and equal multiplicities");
        if (x.parity * y.parity != out.parity || out.l < std::abs(x.l - y.l) || out.l > x.l + y.l)
            problem.fail("paths",
                         block_text(x) + " times " + block_text(y) + " to " + block_text(out),
                         "an irrep that their product contains");
        const double weight = parse_hex(path[5].get<std::string>());
        written["paths"].push_back({path[0], path[1], path[2], "uvu", 1, hex_text(weight)});
        GenericPath p{};
        p.x_offset = x.offset;
        p.x_stride = x.stride;
        p.x_dim = x.dim();
        p.out_offset = out.offset;
        p.out_stride = out.stride;
        p.out_dim = out.dim();
        p.harmonic = y.l * y.l;
        p.harmonic_dim = y.dim();
        p.mul = x.mul;
        p.stride = x.stride;
        numel += x.mul;
        if (numel > outputs) break;
        for (std::int32_t u = 0; u < x.mul; ++u) found.weights.columns.push_back(offset + u);
        offset += x.stride;
        found.add_terms(p, symbols.of({x.l, y.l, out.l}), weight);
        if (found.terms.size() > limits::MAX_TERMS)
            problem.fail("paths",
                         "a list with more than " + std::to_string(limits::MAX_TERMS) +
                             " entries of 3j symbols",
                         "fewer");
    }
    if (numel != outputs)
        fields.fail("problem",
                    (numel > outputs ? "of more than " : "of ") +
                        std::to_string(std::min<std::int64_t>(numel, outputs)) + " weights",
                    std::to_string(outputs) + ", the outputs of the radial network");
    found.weights.width = offset;
    fields.expect_text_of("problem", written);
    return found;
}

void ConvDescription::add_terms(GenericPath path, const std::vector<double>& symbol,
                                double weight) {
    path.pair_begin = narrow(pairs.size());
    for (std::int32_t a = 0; a < path.x_dim; ++a)
        for (std::int32_t c = 0; c < path.out_dim; ++c) {
            const auto begin = narrow(terms.size());
            for (std::int32_t b = 0; b < path.harmonic_dim; ++b) {
                const double entry = symbol[size((a * path.harmonic_dim + b) * path.out_dim + c)];
                if (entry != 0) terms.push_back({b, entry * weight});
            }
            const auto end = narrow(terms.size());
            if (end > begin) pairs.push_back({a, c, begin, end});
        }
    path.pair_end = narrow(pairs.size());
    paths.push_back(path);
}

}  // namespace mdcg
