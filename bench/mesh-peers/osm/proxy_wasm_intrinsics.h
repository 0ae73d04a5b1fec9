// The part of the Proxy-Wasm interface (ABI 0.2.1) that OSM's statistics filter, wasm/stats.cc, uses.
//
// The C++ SDK that OSM compiled it with is in no package registry, so this header takes its place: stats.cc is
// compiled as it is. Each call of the filter makes the same calls of the host as with the SDK, and a metric's
// name is looked up in a hash table in the same way, because these are what the filter costs. One name of a value
// is that of newer Envoys.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

enum class WasmResult : uint32_t { Ok = 0 };
enum class WasmHeaderMapType : uint32_t { RequestHeaders = 0, ResponseHeaders = 2 };
enum class MetricType : uint32_t { Counter = 0, Histogram = 2 };
enum class FilterHeadersStatus : uint32_t { Continue = 0, StopIteration = 1 };

#define HOST(NAME) extern "C" __attribute__((import_module("env"), import_name(#NAME))) WasmResult NAME
#define GUEST(NAME) __attribute__((export_name(#NAME))) NAME

HOST(proxy_get_property)(const char *path, size_t size, const char **value, size_t *value_size);
HOST(proxy_get_header_map_value)(WasmHeaderMapType map, const char *key, size_t size, const char **value,
                                           size_t *value_size);
HOST(proxy_remove_header_map_value)(WasmHeaderMapType map, const char *key, size_t size);
HOST(proxy_define_metric)(MetricType type, const char *name, size_t size, uint32_t *id);
HOST(proxy_increment_metric)(uint32_t id, int64_t offset);
HOST(proxy_record_metric)(uint32_t id, uint64_t value);
HOST(proxy_get_current_time_nanoseconds)(uint64_t *time);

// Bytes that the host has allocated in the module's memory.
class WasmData {
public:
  WasmData(const char *data, size_t size) : data_(data), size_(size) {}
  ~WasmData() { std::free(const_cast<char *>(data_)); }
  WasmData(const WasmData &) = delete;
  WasmData &operator=(const WasmData &) = delete;
  std::string_view view() const { return {data_, size_}; }
  std::string toString() const { return std::string(view()); }

private:
  const char *data_;
  size_t size_;
};
using WasmDataPtr = std::unique_ptr<WasmData>;

inline uint64_t getCurrentTimeNanoseconds() {
  uint64_t time = 0;
  proxy_get_current_time_nanoseconds(&time);
  return time;
}

template <typename T> bool getValue(std::initializer_list<std::string_view> path, T *out) {
  std::string joined;
  // Envoy 1.22 had this name at the top, too.
  if (path.size() == 1 && *path.begin() == "listener_direction") {
    joined.append("xds").push_back('\0');
  }
  for (auto part : path) {
    joined.append(part);
    joined.push_back('\0');
  }
  const char *value = nullptr;
  size_t size = 0;
  if (proxy_get_property(joined.data(), joined.size(), &value, &size) != WasmResult::Ok) {
    return false;
  }
  WasmData data(value, size);
  if (size != sizeof(T)) {
    return false;
  }
  __builtin_memcpy(out, value, size);
  return true;
}

inline WasmDataPtr header(WasmHeaderMapType map, std::string_view key) {
  const char *value = nullptr;
  size_t size = 0;
  proxy_get_header_map_value(map, key.data(), key.size(), &value, &size);
  return std::make_unique<WasmData>(value, size);
}
inline WasmDataPtr getRequestHeader(std::string_view key) { return header(WasmHeaderMapType::RequestHeaders, key); }
inline WasmDataPtr getResponseHeader(std::string_view key) { return header(WasmHeaderMapType::ResponseHeaders, key); }
inline void removeRequestHeader(std::string_view key) {
  proxy_remove_header_map_value(WasmHeaderMapType::RequestHeaders, key.data(), key.size());
}
inline void removeResponseHeader(std::string_view key) {
  proxy_remove_header_map_value(WasmHeaderMapType::ResponseHeaders, key.data(), key.size());
}

// A metric with tags. Envoy's name of it is TAG.VALUE. for each tag, and then its own name.
class TaggedMetric {
public:
  TaggedMetric(MetricType type, std::string_view name, std::vector<std::string> tags)
      : type_(type), name_(name), tags_(std::move(tags)) {}

  uint32_t id(const std::vector<std::string> &values) {
    std::string full;
    for (size_t i = 0; i < tags_.size(); i++) {
      full.append(tags_[i]).append(".").append(values[i]).append(".");
    }
    full.append(name_);
    auto known = ids_.find(full);
    if (known != ids_.end()) {
      return known->second;
    }
    uint32_t id = 0;
    if (proxy_define_metric(type_, full.data(), full.size(), &id) != WasmResult::Ok) {
      std::abort();
    }
    ids_[full] = id;
    return id;
  }

private:
  MetricType type_;
  std::string name_;
  std::vector<std::string> tags_;
  std::unordered_map<std::string, uint32_t> ids_;
};

template <typename T> using Named = std::string_view;

template <typename... Tags> struct Counter : TaggedMetric {
  using TaggedMetric::TaggedMetric;
  static Counter *New(std::string_view name, Named<Tags>... tags) {
    return new Counter(MetricType::Counter, name, {std::string(tags)...});
  }
  void increment(int64_t offset, Tags... values) { proxy_increment_metric(id({values...}), offset); }
};

template <typename... Tags> struct Histogram : TaggedMetric {
  using TaggedMetric::TaggedMetric;
  static Histogram *New(std::string_view name, Named<Tags>... tags) {
    return new Histogram(MetricType::Histogram, name, {std::string(tags)...});
  }
  void record(int64_t value, Named<Tags>... values) {
    proxy_record_metric(id({std::string(values)...}), static_cast<uint64_t>(value));
  }
};

class ContextBase {
public:
  virtual ~ContextBase() = default;
};

class RootContext : public ContextBase {
public:
  RootContext(uint32_t, std::string_view) {}
};

class Context : public ContextBase {
public:
  Context(uint32_t, RootContext *root) : root_(root) {}
  RootContext *root() { return root_; }
  virtual void onCreate() {}
  virtual void onDone() {}
  virtual FilterHeadersStatus onRequestHeaders(uint32_t, bool) { return FilterHeadersStatus::Continue; }
  virtual FilterHeadersStatus onResponseHeaders(uint32_t, bool) { return FilterHeadersStatus::Continue; }

private:
  RootContext *root_;
};

using ContextFactory = std::unique_ptr<Context> (*)(uint32_t, RootContext *);
using RootFactory = std::unique_ptr<RootContext> (*)(uint32_t, std::string_view);
#define CONTEXT_FACTORY(T)                                                                                             \
  [](uint32_t id, RootContext *root) -> std::unique_ptr<Context> { return std::make_unique<T>(id, root); }
#define ROOT_FACTORY(T)                                                                                                \
  [](uint32_t id, std::string_view name) -> std::unique_ptr<RootContext> { return std::make_unique<T>(id, name); }

// What the module has: one filter, a root for each configuration of it, and a context for each request.
struct Module {
  ContextFactory make = nullptr;
  RootFactory make_root = nullptr;
  std::unordered_map<uint32_t, std::unique_ptr<RootContext>> roots;
  std::unordered_map<uint32_t, std::unique_ptr<Context>> contexts;
};
inline Module &module() {
  static Module *one = new Module; // never freed: nothing may outlive it
  return *one;
}
struct RegisterContextFactory {
  RegisterContextFactory(ContextFactory make, RootFactory make_root) {
    module().make = make;
    module().make_root = make_root;
  }
};
inline Context *context(uint32_t id) {
  auto found = module().contexts.find(id);
  return found == module().contexts.end() ? nullptr : found->second.get();
}

extern "C" inline void GUEST(proxy_abi_version_0_2_1)() {}
extern "C" inline uint32_t GUEST(proxy_on_vm_start)(uint32_t, uint32_t) { return 1; }
extern "C" inline uint32_t GUEST(proxy_on_configure)(uint32_t, uint32_t) { return 1; }
extern "C" inline void GUEST(proxy_on_context_create)(uint32_t id, uint32_t parent) {
  if (parent == 0) {
    module().roots[id] = module().make_root(id, "");
    return;
  }
  auto made = module().make(id, module().roots[parent].get());
  made->onCreate();
  module().contexts[id] = std::move(made);
}
extern "C" inline uint32_t GUEST(proxy_on_request_headers)(uint32_t id, uint32_t count, uint32_t end) {
  auto *one = context(id);
  return one ? static_cast<uint32_t>(one->onRequestHeaders(count, end != 0)) : 0;
}
extern "C" inline uint32_t GUEST(proxy_on_response_headers)(uint32_t id, uint32_t count, uint32_t end) {
  auto *one = context(id);
  return one ? static_cast<uint32_t>(one->onResponseHeaders(count, end != 0)) : 0;
}
extern "C" inline uint32_t GUEST(proxy_on_done)(uint32_t id) {
  if (auto *one = context(id)) {
    one->onDone();
  }
  return 1;
}
extern "C" inline void GUEST(proxy_on_delete)(uint32_t id) {
  module().contexts.erase(id);
  module().roots.erase(id);
}
