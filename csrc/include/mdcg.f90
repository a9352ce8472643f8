! The C interface of libmdcg for Fortran 2018. mdcg.h says what each function and field means. Use
! the file that was installed with the library.
!
! Structs have the names and fields of C. Their numbers are 0 and their pointers null at first; set
! `size` to c_sizeof of the variable, then what is needed. Arrays are given by c_loc of a contiguous
! target: positions(3, num_nodes) is positions[num_nodes][3] of C, and vector v of a cell is
! cell(:, v). Functions are given by c_funloc. Texts that go to the library end with c_null_char;
! mdcg_text reads those that come from it. An argument that C may leave null is optional, or
! c_null_ptr or c_null_funptr where it is given by value.
module mdcg
    use, intrinsic :: iso_c_binding
    implicit none

    integer(c_int), parameter :: mdcg_abi = 2 ! MDCG_ABI_VERSION

    enum, bind(c)
        enumerator :: mdcg_ok = 0
        enumerator :: mdcg_error_argument = 1
        enumerator :: mdcg_error_file = 2
        enumerator :: mdcg_error_unsupported = 3
        enumerator :: mdcg_error_compiler = 4
        enumerator :: mdcg_error_memory = 5
        enumerator :: mdcg_error_communication = 6
        enumerator :: mdcg_error_numeric = 7
        enumerator :: mdcg_error_internal = 8
        enumerator :: mdcg_error_device = 9
        enumerator :: mdcg_error_interrupted = 10
    end enum

    type, bind(c) :: mdcg_options
        integer(c_size_t) :: size = 0
        type(c_ptr) :: device = c_null_ptr
        type(c_ptr) :: kernels = c_null_ptr
        integer(c_int) :: threads = 0
        real(c_double) :: skin = 0
        type(c_ptr) :: precision = c_null_ptr
        type(c_ptr) :: dispersion = c_null_ptr
        type(c_ptr) :: damping = c_null_ptr
        real(c_double) :: dispersion_cutoff = 0
        type(c_ptr) :: memory = c_null_ptr
        integer(c_int) :: memory_models = 0
        integer(c_int) :: fixed_waves = 0
    end type

    type, bind(c) :: mdcg_info
        integer(c_size_t) :: size = 0
        real(c_double) :: r_max = 0
        integer(c_int) :: num_types = 0
        type(c_ptr) :: type_names = c_null_ptr
        type(c_ptr) :: atomic_numbers = c_null_ptr
        integer(c_int) :: double_precision = 0
        integer(c_int) :: num_exchanges = 0
        type(c_ptr) :: manifest = c_null_ptr
        integer(c_int) :: exchange_bytes = 0
        type(c_ptr) :: digest = c_null_ptr
        integer(c_int) :: has_energy = 0
        integer(c_int) :: has_charges = 0
        integer(c_int) :: num_inputs = 0
        type(c_ptr) :: input_names = c_null_ptr
        type(c_ptr) :: input_defaults = c_null_ptr
        integer(c_int) :: is_long_range = 0
        integer(c_int) :: has_dipoles = 0
    end type

    type, bind(c) :: mdcg_device
        integer(c_size_t) :: size = 0
        integer(c_int) :: number = 0
        integer(c_int) :: count = 0
        integer(c_signed_char) :: uuid(16) = 0_c_signed_char
    end type

    type, bind(c) :: mdcg_list
        integer(c_int64_t) :: edges = 0
        integer(c_int64_t) :: shifts = 0
    end type

    type, bind(c) :: mdcg_system
        integer(c_size_t) :: size = 0
        integer(c_int64_t) :: num_local = 0
        integer(c_int64_t) :: num_nodes = 0
        type(c_ptr) :: positions = c_null_ptr
        type(c_ptr) :: types = c_null_ptr
        integer(c_int64_t) :: num_edges = 0
        type(c_ptr) :: sender = c_null_ptr
        type(c_ptr) :: receiver = c_null_ptr
        type(c_ptr) :: shifts = c_null_ptr
        type(c_ptr) :: cell = c_null_ptr
        type(c_ptr) :: periodic = c_null_ptr
        type(c_ptr) :: list = c_null_ptr
        integer(c_int) :: make_edges = 0
        type(c_ptr) :: image = c_null_ptr
        integer(c_int64_t) :: num_images = 0
        type(c_ptr) :: image_shifts = c_null_ptr
        real(c_double) :: skin = 0
        integer(c_int64_t) :: num_copies = 0
        type(c_ptr) :: copy_node = c_null_ptr
        type(c_ptr) :: copy_image = c_null_ptr
        type(c_ptr) :: energy_weights = c_null_ptr
        integer(c_int64_t) :: num_inner = 0
        type(c_ptr) :: inputs = c_null_ptr
    end type

    type, bind(c) :: mdcg_batch
        integer(c_size_t) :: size = 0
        integer(c_int64_t) :: num_systems = 0
        type(c_ptr) :: first_node = c_null_ptr
        type(c_ptr) :: positions = c_null_ptr
        type(c_ptr) :: types = c_null_ptr
        type(c_ptr) :: cells = c_null_ptr
        type(c_ptr) :: periodic = c_null_ptr
        integer(c_int) :: on_device = 0
        type(c_ptr) :: inputs = c_null_ptr
    end type

    type, bind(c) :: mdcg_results
        integer(c_size_t) :: size = 0
        type(c_ptr) :: energy = c_null_ptr
        type(c_ptr) :: energies = c_null_ptr
        type(c_ptr) :: forces = c_null_ptr
        type(c_ptr) :: virial = c_null_ptr
        type(c_ptr) :: virials = c_null_ptr
        type(c_ptr) :: descriptors = c_null_ptr
    end type

    type, bind(c) :: mdcg_peer
        integer(c_int) :: rank = 0
        integer(c_int64_t) :: sent_first = 0
        integer(c_int64_t) :: num_sent = 0
        integer(c_int64_t) :: ghost_first = 0
        integer(c_int64_t) :: num_ghosts = 0
        integer(c_int64_t) :: there_sent_first = 0
        integer(c_int64_t) :: there_ghost_first = 0
    end type

    type, bind(c) :: mdcg_communicator
        integer(c_size_t) :: size = 0
        type(c_ptr) :: context = c_null_ptr
        type(c_funptr) :: forward = c_null_funptr
        type(c_funptr) :: reverse = c_null_funptr
        integer(c_int64_t) :: num_sent = 0
        type(c_ptr) :: sent = c_null_ptr
        type(c_funptr) :: forward_rows = c_null_funptr
        type(c_funptr) :: reverse_rows = c_null_funptr
        integer(c_int) :: rank = 0
        integer(c_int) :: num_ranks = 0
        integer(c_int64_t) :: num_peers = 0
        type(c_ptr) :: peers = c_null_ptr
        type(c_funptr) :: gather = c_null_funptr
        type(c_funptr) :: sum = c_null_funptr
    end type

    interface
        function mdcg_abi_version() bind(c)
            import
            integer(c_int) :: mdcg_abi_version
        end function
        function mdcg_version() bind(c)
            import
            type(c_ptr) :: mdcg_version
        end function
        function mdcg_last_error() bind(c)
            import
            type(c_ptr) :: mdcg_last_error
        end function
        function mdcg_last_error_about(names) bind(c)
            import
            integer(c_int64_t), intent(in) :: names(*)
            type(c_ptr) :: mdcg_last_error_about
        end function
        function mdcg_printable(text) bind(c)
            import
            character(kind=c_char), intent(in) :: text(*)
            type(c_ptr) :: mdcg_printable
        end function
        subroutine mdcg_set_interrupt(poll, context) bind(c)
            import
            type(c_funptr), value :: poll
            type(c_ptr), value :: context
        end subroutine
        subroutine mdcg_set_notice(tell, context) bind(c)
            import
            type(c_funptr), value :: tell
            type(c_ptr), value :: context
        end subroutine
        function mdcg_find_device(name, device) bind(c)
            import
            character(kind=c_char), intent(in) :: name(*)
            type(mdcg_device), intent(inout) :: device
            integer(c_int) :: mdcg_find_device
        end function
        function mdcg_open(path, options, model) bind(c)
            import
            character(kind=c_char), intent(in) :: path(*)
            type(mdcg_options), intent(in), optional :: options
            type(c_ptr), intent(out) :: model
            integer(c_int) :: mdcg_open
        end function
        function mdcg_open_same(opened, options, model) bind(c)
            import
            type(c_ptr), value :: opened
            type(mdcg_options), intent(in), optional :: options
            type(c_ptr), intent(out) :: model
            integer(c_int) :: mdcg_open_same
        end function
        subroutine mdcg_close(model) bind(c)
            import
            type(c_ptr), value :: model
        end subroutine
        function mdcg_prepare(model) bind(c)
            import
            type(c_ptr), value :: model
            integer(c_int) :: mdcg_prepare
        end function
        function mdcg_check_peers(model, communicator) bind(c)
            import
            type(c_ptr), value :: model
            type(mdcg_communicator), intent(in) :: communicator
            integer(c_int) :: mdcg_check_peers
        end function
        function mdcg_describe(model, info) bind(c)
            import
            type(c_ptr), value :: model
            type(mdcg_info), intent(inout) :: info
            integer(c_int) :: mdcg_describe
        end function
        function mdcg_descriptor_width(model) bind(c)
            import
            type(c_ptr), value :: model
            integer(c_int) :: mdcg_descriptor_width
        end function
        function mdcg_set_threads(model, threads) bind(c)
            import
            type(c_ptr), value :: model
            integer(c_int), value :: threads
            integer(c_int) :: mdcg_set_threads
        end function
        function mdcg_evaluate(model, system, communicator, results) bind(c)
            import
            type(c_ptr), value :: model
            type(mdcg_system), intent(in) :: system
            type(mdcg_communicator), intent(in), optional :: communicator
            type(mdcg_results), intent(in) :: results
            integer(c_int) :: mdcg_evaluate
        end function
        function mdcg_evaluate_batch(model, batch, results) bind(c)
            import
            type(c_ptr), value :: model
            type(mdcg_batch), intent(in) :: batch
            type(mdcg_results), intent(in) :: results
            integer(c_int) :: mdcg_evaluate_batch
        end function
        function mdcg_report(model) bind(c)
            import
            type(c_ptr), value :: model
            type(c_ptr) :: mdcg_report
        end function
        function mdcg_summary(model) bind(c)
            import
            type(c_ptr), value :: model
            type(c_ptr) :: mdcg_summary
        end function
    end interface

contains

    ! Returns a copy of a text that the library has returned; of a null pointer, an empty one.
    function mdcg_text(from) result(text)
        type(c_ptr), intent(in) :: from
        character(:), allocatable :: text
        character(kind=c_char), pointer :: characters(:)
        integer :: length
        text = ""
        if (.not. c_associated(from)) return
        call c_f_pointer(from, characters, [huge(length)])
        length = 0
        do while (characters(length + 1) /= c_null_char)
            length = length + 1
        end do
        text = repeat(" ", length)
        do length = 1, len(text)
            text(length:length) = characters(length)
        end do
    end function

end module
