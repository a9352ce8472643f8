! Molecular dynamics at constant energy from Fortran, with neighbour lists of the library:
!
!   gfortran DIR/include/mdcg.f90 dynamics.f90 -o dynamics DIR/libmdcg.so -Wl,-rpath,DIR
!   ./dynamics data/water.mdcg data/water192.xyz 1000 last.xyz
!
! where DIR is what `python -c "import mdcg; print(mdcg.__path__[0])"` prints in this folder.
! It is the trajectory of dynamics.c, which also shows how a program gives a list of its own. A
! program such as CP2K needs open_model and evaluate. Units: Å, eV, fs, atomic masses.
module water
    use mdcg
    use, intrinsic :: iso_fortran_env, only: error_unit
    implicit none

    real(c_double), parameter :: time_step = 0.5_c_double, temperature = 300
    real(c_double), parameter :: boltzmann = 8.617333262e-5_c_double    ! eV/K
    real(c_double), parameter :: acceleration = 9.648533212e-3_c_double ! of 1 eV/Å, mass 1; Å/fs²
    integer :: num_atoms
    character(8), allocatable :: names(:)
    integer(c_int32_t), allocatable, target :: types(:)
    real(c_double), allocatable, target :: x(:, :), f(:, :) ! (3, num_atoms)
    real(c_double), allocatable, target :: energies(:)
    real(c_double), allocatable :: v(:, :), mass(:)
    real(c_double), target :: cell(3, 3), energy, virial(3, 3)

    interface ! the random numbers of C, so that all programs start with the same velocities
        function next_random() bind(c, name="rand")
            import
            integer(c_int) :: next_random
        end function
    end interface

contains

    subroutine stop_because(what, why)
        character(*), intent(in) :: what, why
        write (error_unit, "(a, ': ', a)") what, why
        stop 1, quiet=.true.
    end subroutine

    ! Ends the program with the library's sentence if a call has failed.
    subroutine check(what, status)
        character(*), intent(in) :: what
        integer(c_int), intent(in) :: status
        if (status /= mdcg_ok) call stop_because(what, mdcg_text(mdcg_last_error()))
    end subroutine

    ! Atoms and cell of an extended XYZ file with the columns species and positions.
    subroutine read_atoms(path)
        character(*), intent(in) :: path
        character(1024) :: line
        integer :: file, first, last, i, status
        open (newunit=file, file=path, status="old", action="read", iostat=status)
        if (status /= 0) call stop_because(path, "cannot be opened")
        read (file, *, iostat=status) num_atoms
        if (status /= 0) call stop_because(path, "the first line is not a number of atoms")
        allocate (names(num_atoms), types(num_atoms), mass(num_atoms))
        allocate (x(3, num_atoms), v(3, num_atoms), f(3, num_atoms), energies(num_atoms))
        read (file, "(a)", iostat=status) line
        if (status == 0 .and. index(line, 'Lattice="') == 0) status = 1
        first = index(line, 'Lattice="') + len('Lattice="')
        last = first + index(line(first:), '"') - 2
        if (status == 0) read (line(first:last), *, iostat=status) cell
        if (status /= 0) call stop_because(path, 'the second line has no Lattice="ax ay ... cz"')
        do i = 1, num_atoms
            read (file, *, iostat=status) names(i), x(:, i)
            if (status /= 0) call stop_because(path, "an atom is missing")
        end do
        close (file)
    end subroutine

    ! The stress is the negative virial divided by the volume.
    subroutine write_atoms(path)
        character(*), intent(in) :: path
        integer :: file, i, status
        open (newunit=file, file=path, action="write", iostat=status)
        if (status /= 0) call stop_because(path, "cannot be written")
        write (file, "(i0)") num_atoms
        write (file, "(a, 9(g0, 1x), a, g0, a, 9(g0, 1x), a)") 'Lattice="', cell, &
            '" Properties=species:S:1:pos:R:3:forces:R:3:energies:R:1 energy=', energy, ' stress="', &
            -virial / volume(), '"'
        do i = 1, num_atoms
            write (file, "(a, 7(1x, g0))") trim(names(i)), x(:, i), f(:, i), energies(i)
        end do
        close (file)
    end subroutine

    function volume()
        real(c_double) :: volume
        volume = abs(cell(1, 1) * (cell(2, 2) * cell(3, 3) - cell(3, 2) * cell(2, 3)) &
                   - cell(2, 1) * (cell(1, 2) * cell(3, 3) - cell(3, 2) * cell(1, 3)) &
                   + cell(3, 1) * (cell(1, 2) * cell(2, 3) - cell(2, 2) * cell(1, 3)))
    end function

    ! Opens a package, and finds the type of each atom in it.
    function open_model(path) result(model)
        character(*), intent(in) :: path
        type(c_ptr) :: model
        character(kind=c_char), target :: device(4) = ["c", "p", "u", c_null_char]
        type(c_ptr), pointer :: type_names(:)
        type(mdcg_options) :: options
        type(mdcg_info) :: info
        integer :: i, t
        if (mdcg_abi_version() /= mdcg_abi) call stop_because("libmdcg.so", "is not that of mdcg.f90")
        options%size = c_sizeof(options)
        options%device = c_loc(device)
        options%skin = 0.5_c_double
        call check("opening", mdcg_open(path // c_null_char, options, model))
        info%size = c_sizeof(info)
        call check("describing", mdcg_describe(model, info))
        call c_f_pointer(info%type_names, type_names, [info%num_types])
        do i = 1, num_atoms
            types(i) = -1
            do t = 1, info%num_types
                if (mdcg_text(type_names(t)) == names(i)) types(i) = t - 1
            end do
            if (types(i) < 0) call stop_because(trim(names(i)), "the model does not know this type")
        end do
    end function

    ! Energies, forces and virial at the positions in x.
    subroutine evaluate(model)
        type(c_ptr), intent(in) :: model
        type(mdcg_system) :: system
        type(mdcg_results) :: results
        system%size = c_sizeof(system)
        system%num_local = num_atoms
        system%num_nodes = num_atoms
        system%positions = c_loc(x)
        system%types = c_loc(types)
        system%cell = c_loc(cell) ! periodic in all directions
        system%make_edges = 1
        results%size = c_sizeof(results)
        results%energy = c_loc(energy)
        results%energies = c_loc(energies)
        results%forces = c_loc(f)
        results%virial = c_loc(virial)
        call check("evaluating", mdcg_evaluate(model, system, results=results))
    end subroutine

    ! Velocities of the temperature, from sums of random numbers; the total momentum is zero.
    subroutine draw_velocities()
        real(c_double) :: momentum(3), normal
        integer :: i, d, k
        momentum = 0
        do i = 1, num_atoms
            select case (names(i))
            case ("H"); mass(i) = 1.008_c_double
            case ("O"); mass(i) = 15.999_c_double
            case default; call stop_because(trim(names(i)), "this program has the masses of H and O only")
            end select
            do d = 1, 3
                normal = -6 ! twelve uniform numbers have variance 1
                do k = 1, 12
                    normal = normal + next_random() / real(huge(0_c_int), c_double) ! RAND_MAX of Linux
                end do
                v(d, i) = normal * sqrt(boltzmann * temperature * acceleration / mass(i))
                momentum(d) = momentum(d) + mass(i) * v(d, i)
            end do
        end do
        v = v - spread(momentum / sum(mass), 2, num_atoms)
    end subroutine

    function kinetic_energy()
        real(c_double) :: kinetic_energy
        kinetic_energy = 0.5_c_double * sum(mass * sum(v**2, 1)) / acceleration
    end function

    function argument(number) result(text)
        integer, intent(in) :: number
        character(:), allocatable :: text
        integer :: length
        call get_command_argument(number, length=length)
        allocate (character(length) :: text)
        call get_command_argument(number, text)
    end function

end module

program dynamics
    use water
    implicit none
    type(c_ptr) :: model
    real(c_double) :: start, largest, total
    integer :: steps, step, status
    character(:), allocatable :: words
    if (command_argument_count() /= 4) &
        call stop_because("usage", "dynamics PACKAGE.mdcg WATER.xyz STEPS LAST.xyz")
    words = argument(3)
    read (words, *, iostat=status) steps
    if (status /= 0) call stop_because(words, "is not a number of steps")
    call read_atoms(argument(2))
    model = open_model(argument(1))
    call draw_velocities()
    call evaluate(model)
    print "(a)", mdcg_text(mdcg_summary(model)), "  step   potential      total (eV)    K"
    largest = 0
    do step = 0, steps
        if (step > 0) then ! velocity Verlet: half a kick, drift, new forces, half a kick
            call kick()
            x = x + time_step * v
            call evaluate(model)
            call kick()
        end if
        total = energy + kinetic_energy()
        if (step == 0) start = total
        largest = max(largest, abs(total - start))
        if (mod(step, 100) == 0 .or. step == steps) print "(i6, 2(1x, f12.6), 1x, f7.1)", step, &
            energy, total, 2 * kinetic_energy() / (3 * (num_atoms - 1) * boltzmann)
    end do
    print "(a, f6.4, a)", "total energy within ", 1e3_c_double * largest / num_atoms, " meV/atom"
    call write_atoms(argument(4))
    call mdcg_close(model)

contains

    subroutine kick()
        v = v + 0.5_c_double * time_step * acceleration * f / spread(mass, 1, 3)
    end subroutine

end program
