-- delete: delete the semaphore. Holders lose their permits, and waiters send their requests again.
--
-- The numbers that hubs have used stay for about a minute, so that an operation which was sent
-- before and arrives late does nothing.
--
-- KEYS     as in the head
-- ARGV     number  number of this operation, which runs at most once
-- RETURNS  {tag}

local number = tonumber(ARGV[5])

load_state()
if already_ran(number, 'changes') then return { tag } end
for _, owner in ipairs(call('ZRANGE', hubs, 0, -1)) do
  if owner ~= hub then publish_to(owner, 'deleted', '-') end
  call('HDEL', meta, owner .. ':client', owner .. ':no_push')
end
if keyed then keyed.delete() end
call('UNLINK', holders, facts, limit, queue)
call('HDEL', meta, 'mode', 'layout', 'lead', 'heavy', 'hold', 'looked', 'passed', 'back_off', 'slots')
-- A counter ahead of the server's clock stays, because its tokens must not be issued again.
if state.counter < wall_us then
  call('HDEL', meta, 'counter')
  state.counter = 0
end
state.mode = nil
note_call(number, 'changes')
keep(meta, counter_lead() + SLACK)
return { tag }
