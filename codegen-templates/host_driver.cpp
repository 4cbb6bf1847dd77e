// The driver's library for a processor: devices are memory of this machine, machine code is a library that holds a kernel built over the
// host model (`host_entry.hpp`). A program that loads it as `libcuda.so` runs kernels as it runs them on a device.
//
// What is started waits until somebody waits for it. Every stream then runs in a process of its own, with all device memory in common: ranks
// meet as they do on devices, and whatever a kernel breaks is a fault of the driver and not the end of the program.
//
// HOST_MODEL_DEVICES is how many devices there are (8), HOST_MODEL_LOG a file that gets the name of every kernel that was started.
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "host_entry.hpp"

typedef int Result;
typedef uint64_t Address;
enum : Result { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_IMAGE = 200, NOT_FOUND = 500, LAUNCH_FAILED = 719 };

// The file stays open: a library is known by the name of its file, and this is a number that would be given again.
struct Module { void* library; int file; };
struct Function { const model::Entry* entry; std::string name; int dynamic_bytes; };
struct Work {
  std::function<void()> run;
  std::string kernel;  // empty for copies
  bool is_hosts;       // it writes memory that only this process has
};
struct Stream { std::deque<Work> work; bool records = false; std::vector<Work> recorded; };
struct Graph { std::vector<Work> work; };
struct LaunchConfig { unsigned grid[3], block[3], shared_bytes; Stream* stream; void* attributes; unsigned count; };

static std::recursive_mutex one_at_a_time;
static std::vector<Stream*> streams;
static std::map<Address, std::pair<void*, size_t>> mapped;   // what to give back, by address
static std::map<Address, size_t> pinned;
static bool is_broken = false;
#define ALONE std::lock_guard<std::recursive_mutex> alone(one_at_a_time)

// Memory that processes share, in front of a page that nobody may touch.
static Address shared_memory(size_t bytes) {
  const size_t page = 4096, own = (bytes + 255) / 256 * 256, all = (own + page - 1) / page * page;
  void* at = mmap(nullptr, all + page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return 0;
  mprotect((char*)at + all, page, PROT_NONE);
  const Address address = (Address)at + all - own;
  mapped[address] = {at, all + page};
  return address;
}
static void give_back(Address address) {
  const auto found = mapped.find(address);
  if (found == mapped.end()) return;
  munmap(found->second.first, found->second.second);
  mapped.erase(found);
}
static bool is_pinned(const void* p) {
  auto next = pinned.upper_bound((Address)p);
  return next != pinned.begin() && (Address)p < (--next)->first + next->second;
}

// Runs what one stream may run without this process; gives how the first kernel with a fault is called.
static void run_beside(Stream& stream, char* at) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(2, 1);
  while (!stream.work.empty() && !stream.work.front().is_hosts) {
    Work& work = stream.work.front();
    snprintf(at, 200, "%s", work.kernel.c_str());
    work.run();
    stream.work.pop_front();
  }
  _exit(0);
}

// Runs all that was started, on all streams.
static Result flush() {
  static char* names = (char*)mmap(nullptr, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  while (!is_broken) {
    std::vector<std::pair<Stream*, pid_t>> beside;
    for (size_t s = 0; s < streams.size(); ++s) {
      Stream& stream = *streams[s];
      while (!stream.work.empty() && stream.work.front().kernel.empty()) {
        stream.work.front().run();
        stream.work.pop_front();
      }
      if (stream.work.empty()) continue;
      fflush(stdout);
      const pid_t child = fork();
      if (child == 0) run_beside(stream, names + s % 256 * 256);
      if (child < 0) { is_broken = true; continue; }
      beside.push_back({&stream, child});
    }
    if (beside.empty()) return is_broken ? LAUNCH_FAILED : SUCCESS;
    // In the order in which they end: who has a fault is not heard from by those that it should meet, which would wait for ever.
    for (size_t left = beside.size(); left > 0; --left) {
      int status = 0;
      const pid_t ended = waitpid(-1, &status, 0);
      const auto own = std::find_if(beside.begin(), beside.end(), [=](const auto& one) { return one.second == ended; });
      if (own == beside.end()) { is_broken = true; break; }
      Stream* stream = own->first;
      own->second = 0;
      if (!is_broken && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) {
        const size_t s = std::find(streams.begin(), streams.end(), stream) - streams.begin();
        fprintf(stderr, "kernel `%s` ended with status %d\n", names + s % 256 * 256, status);
        is_broken = true;
        for (const auto& one : beside)
          if (one.second > 0) kill(one.second, SIGKILL);
      }
      while (!stream->work.empty() && !stream->work.front().is_hosts) stream->work.pop_front();
    }
  }
  return LAUNCH_FAILED;
}
static Result add(Stream* stream, Work work) {
  if (is_broken) return LAUNCH_FAILED;
  if (stream->records) stream->recorded.push_back(std::move(work));
  else stream->work.push_back(std::move(work));
  return SUCCESS;
}

extern "C" {
Result cuInit(unsigned) { return SUCCESS; }
Result cuDeviceGetCount(int* count) {
  const char* given = getenv("HOST_MODEL_DEVICES");
  *count = given ? atoi(given) : 8;
  return SUCCESS;
}
Result cuDeviceGet(int* device, int number) {
  int count;
  cuDeviceGetCount(&count);
  *device = number;
  return number < count ? SUCCESS : INVALID_VALUE;
}
Result cuDeviceGetName(char* name, int length, int device) {
  snprintf(name, length, "host model %d", device);
  return SUCCESS;
}
// Compute capability 9.0.
Result cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 9 : 0;
  return SUCCESS;
}
Result cuDevicePrimaryCtxRetain(void** context, int device) { *context = (void*)(intptr_t)(device + 1); return SUCCESS; }
Result cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
Result cuCtxSetCurrent(void*) { return SUCCESS; }
Result cuCtxEnablePeerAccess(void*, unsigned) { return SUCCESS; }
Result cuGetErrorString(Result error, const char** text) {
  *text = error == LAUNCH_FAILED ? "a kernel's process did not end well" : error == OUT_OF_MEMORY ? "no memory" : error == INVALID_IMAGE ? "no library of a kernel" : "refused";
  return SUCCESS;
}
Result cuGetErrorName(Result error, const char** text) { return cuGetErrorString(error, text); }

Result cuStreamCreate(Stream** stream, unsigned) {
  ALONE;
  streams.push_back(*stream = new Stream());
  return SUCCESS;
}
Result cuStreamDestroy_v2(Stream* stream) {
  ALONE;
  const Result done = flush();
  streams.erase(std::find(streams.begin(), streams.end(), stream));
  delete stream;
  return done;
}
Result cuStreamSynchronize(Stream*) { ALONE; return flush(); }
Result cuStreamBeginCapture_v2(Stream* stream, int) { ALONE; stream->records = true; return SUCCESS; }
Result cuStreamEndCapture(Stream* stream, Graph** graph) {
  ALONE;
  *graph = new Graph{std::move(stream->recorded)};
  stream->recorded.clear();
  stream->records = false;
  return SUCCESS;
}
Result cuGraphInstantiateWithFlags(Graph** exec, Graph* graph, unsigned long long) { *exec = new Graph(*graph); return SUCCESS; }
Result cuGraphDestroy(Graph* graph) { delete graph; return SUCCESS; }
Result cuGraphExecDestroy(Graph* graph) { delete graph; return SUCCESS; }
Result cuGraphLaunch(Graph* graph, Stream* stream) {
  ALONE;
  Result done = SUCCESS;
  for (const Work& work : graph->work)
    if (done == SUCCESS) done = add(stream, work);
  return done;
}

Result cuEventCreate(void** event, unsigned) { *event = new char; return SUCCESS; }
Result cuEventDestroy_v2(void* event) { delete (char*)event; return SUCCESS; }
Result cuEventRecord(void*, Stream*) { return SUCCESS; }
Result cuEventQuery(void*) { ALONE; return flush(); }
Result cuEventSynchronize(void*) { ALONE; return flush(); }
// Nothing takes time here that means something.
Result cuEventElapsedTime(float* millis, void*, void*) { *millis = 0; return SUCCESS; }
Result cuEventElapsedTime_v2(float* millis, void*, void*) { *millis = 0; return SUCCESS; }

Result cuMemAlloc_v2(Address* address, size_t bytes) { ALONE; return (*address = shared_memory(bytes)) ? SUCCESS : OUT_OF_MEMORY; }
Result cuMemFree_v2(Address address) {
  ALONE;
  const Result done = flush();
  give_back(address);
  return done;
}
Result cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  ALONE;
  *memory = (void*)shared_memory(bytes);
  if (*memory) pinned[(Address)*memory] = bytes;
  return *memory ? SUCCESS : OUT_OF_MEMORY;
}
Result cuMemFreeHost(void* memory) {
  ALONE;
  const Result done = flush();
  pinned.erase((Address)memory);
  give_back((Address)memory);
  return done;
}
// Of pinned memory late, of other memory at once.
Result cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, Stream* stream) {
  ALONE;
  if (is_pinned(from)) return add(stream, {[=] { memcpy((void*)to, from, bytes); }, "", false});
  auto held = std::make_shared<std::vector<char>>((const char*)from, (const char*)from + bytes);
  return add(stream, {[=] { memcpy((void*)to, held->data(), bytes); }, "", false});
}
Result cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, Stream* stream) {
  ALONE;
  return add(stream, {[=] { memcpy(to, (const void*)from, bytes); }, "", !is_pinned(to)});
}
Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Stream* stream) {
  ALONE;
  return add(stream, {[=] { memcpy((void*)to, (const void*)from, bytes); }, "", false});
}
Result cuMemsetD8Async(Address to, unsigned char byte, size_t bytes, Stream* stream) {
  ALONE;
  return add(stream, {[=] { memset((void*)to, byte, bytes); }, "", false});
}

// An image is a library, whose size its own head tells.
Result cuModuleLoadData(Module** module, const void* image) {
  ALONE;
  const uint8_t* bytes = (const uint8_t*)image;
  if (memcmp(bytes, "\x7f" "ELF\x02", 5) != 0) return INVALID_IMAGE;
  uint64_t sections;
  uint16_t size, count;
  memcpy(&sections, bytes + 40, 8);
  memcpy(&size, bytes + 58, 2);
  memcpy(&count, bytes + 60, 2);
  const int file = memfd_create("kernel", MFD_CLOEXEC);
  const size_t all = sections + (size_t)size * count;
  const bool written = file >= 0 && write(file, image, all) == (ssize_t)all;
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  void* library = written ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!library) fprintf(stderr, "%s\n", written ? dlerror() : "a library cannot be written");
  if (!library) {
    if (file >= 0) close(file);
    return INVALID_IMAGE;
  }
  *module = new Module{library, file};
  return SUCCESS;
}
Result cuModuleUnload(Module* module) {
  ALONE;
  const Result done = flush();
  dlclose(module->library);
  close(module->file);
  delete module;
  return done;
}
Result cuModuleGetFunction(Function** function, Module* module, const char* name) {
  const void* entry = dlsym(module->library, (std::string(name) + "_entry").c_str());
  if (!entry) return NOT_FOUND;
  *function = new Function{(const model::Entry*)entry, name, 0};
  return SUCCESS;
}
Result cuFuncGetParamInfo(Function* function, size_t index, size_t* offset, size_t* size) {
  if (index >= function->entry->count) return INVALID_VALUE;
  *offset = 0;
  *size = function->entry->sizes[index];
  return SUCCESS;
}
Result cuFuncSetAttribute(Function* function, int, int value) { function->dynamic_bytes = value; return SUCCESS; }
Result cuLaunchKernelEx(const LaunchConfig* config, Function* function, void** given, void**) {
  ALONE;
  const model::Entry* entry = function->entry;
  auto held = std::make_shared<std::vector<std::vector<char>>>();
  for (size_t i = 0; i < entry->count; ++i) held->emplace_back((char*)given[i], (char*)given[i] + entry->sizes[i]);
  static FILE* log = getenv("HOST_MODEL_LOG") ? fopen(getenv("HOST_MODEL_LOG"), "a") : nullptr;
  if (log) { fprintf(log, "%s\n", function->name.c_str()); fflush(log); }
  const unsigned x = config->grid[0], y = config->grid[1], threads = config->block[0], bytes = config->shared_bytes;
  // One start as threads are numbered, the next the other way round.
  static unsigned starts = 0;
  const bool backwards = starts++ % 2 == 1;
  auto run = [=] {
    std::vector<void*> cells;
    for (auto& cell : *held) cells.push_back(cell.data());
    entry->run(x, y, threads, bytes, backwards, cells.data());
  };
  return add(config->stream, {run, function->name, false});
}
// A map as the host model has it: element type, rank, then what the driver's own call gives.
Result cuTensorMapEncodeTiled(void* map, int, unsigned, void* address, const uint64_t* lengths, const uint64_t*, const uint32_t* box, const uint32_t*, int, int, int, int) {
  model::MapWords words = {(uint64_t)address, lengths[0], lengths[1], box[0], box[1]};
  memset(map, 0, 128);
  memcpy(map, &words, sizeof words);
  return SUCCESS;
}
}
