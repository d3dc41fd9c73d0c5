// A CUDA device without kernels for a CPU build of torch: hooks that report one device, and a device guard.
//
// Members without "override" exist in some versions of torch only.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace at {

// torch creates the class that is registered under this name when it is first asked for CUDA.
struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const { return true; }
  bool isAvailable() const { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return false; }
  int getNumGPUs() const { return 0; }
  DeviceIndex deviceCount() const { return 1; }
  DeviceIndex getCurrentDevice() const { return 0; }
  DeviceIndex current_device() const { return 0; }
};

REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace at

namespace {

const c10::Device kDevice(c10::DeviceType::CUDA, 0);

struct DeviceGuard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Device getDevice() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Stream getStream(c10::Device) const noexcept { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
};

}  // namespace

// Returns 1 if torch now reports a CUDA device, and 0 if it had looked for one before.
extern "C" int add_fake_device() {
  static DeviceGuard guard;
  auto& registered = c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)];
  if (registered.load() == nullptr) {
    registered.store(&guard);
  }
  return at::detail::getCUDAHooks().hasCUDA() ? 1 : 0;
}
